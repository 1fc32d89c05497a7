"""What the server knows of the sites' memories: memories.json in the run's folder.

It holds the run's id, under which sites find their memories again, and which version of its memory
each site had after the exchanges that a server may come back to, with its checksum. So a memory
that is lost, damaged or of another time is noticed before anything is computed from it.
"""

from __future__ import annotations

import json
import math
import uuid
from pathlib import Path

from pfedseq.errors import InputError
from pfedseq.files import read_object, write_atomically

Version = tuple[int, float]
"""A round and an exchange in it: the order of a client's memories."""


def stamp(version: Version, checksum: str) -> str:
    """A version of a memory and its content, in a message."""
    return f"{version[0]:06d}-{int(version[1]):03d}:{checksum}"


def read_stamp(text: str) -> tuple[Version, str]:
    """What `stamp` gave; anything else is refused."""
    version, colon, checksum = text.partition(":")
    t, dash, k = version.partition("-")
    if not (colon and dash and t.isdigit() and k.isdigit() and checksum.isalnum()):
        raise InputError(f"{text!r} names no version of a memory")
    return (int(t), int(k)), checksum


class Ledger:
    """Stamps of the sites' memories, by method and site, the oldest first."""

    def __init__(self, folder: Path, begun: bool) -> None:
        """The ledger of a run; one that has `begun` must have it."""
        self.path = folder / "memories.json"
        values = read_object(self.path)
        if values is None:
            if begun:
                raise InputError(
                    f"{self.path} is missing: without it nobody knows under which name the sites "
                    "keep their memories of this run; restore it from a backup, or start a new run"
                )
            values = {"run": uuid.uuid4().hex, "memories": {}}
            write_atomically(self.path, json.dumps(values) + "\n")
        try:
            self.run = str(values["run"])
            self._stamps: dict[str, dict[str, list[str]]] = values["memories"]
            for sites in self._stamps.values():
                for stamps in sites.values():
                    _ = [read_stamp(one) for one in stamps]
        except (KeyError, TypeError, AttributeError, InputError) as problem:
            raise InputError(f"{self.path} is damaged: {problem}") from None

    def expected(self, method: str, site: str, version: Version) -> str:
        """What a site should remember from before `version`; empty where nothing is known."""
        stamps = self._stamps.get(method, {}).get(site, [])
        older = [one for one in stamps if read_stamp(one)[0] < version]
        return older[-1] if older else ""

    def note(self, method: str, site: str, said: str, kept: int) -> None:
        """A site remembers this now; what nobody can come back to before `kept` is dropped."""
        version, _ = read_stamp(said)
        sites = self._stamps.setdefault(method, {})
        stamps = [one for one in sites.get(site, []) if read_stamp(one)[0] < version] + [said]
        bygone = [one for one in stamps if read_stamp(one)[0] <= (kept, math.inf)]
        sites[site] = bygone[-1:] + stamps[len(bygone) :]

    def forget(self, site: str) -> None:
        """Expect nothing of a site: the operator accepts what it has."""
        for sites in self._stamps.values():
            sites.pop(site, None)
        self.save()

    def save(self) -> None:
        """Write it down."""
        values = {"run": self.run, "memories": self._stamps}
        write_atomically(self.path, json.dumps(values) + "\n")
