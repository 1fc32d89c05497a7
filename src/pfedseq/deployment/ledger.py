"""The server's record of the sites' memories: memories.json in the run's folder.

It contains the run's id, under which sites store their memories, and the version and checksum of
each site's memory after every exchange that a server may return to. A memory that is lost, damaged
or from another time is thus detected before anything is computed from it.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from pathlib import Path

from pfedseq.errors import InputError
from pfedseq.files import read_object, write_atomically

Version = tuple[int, float]
"""A round and an exchange in it: the order of a client's memories."""


_STAMP = re.compile("([0-9]{1,9})-([0-9]{1,9}):([0-9a-zA-Z]{1,64})")


def stamp(version: Version, checksum: str) -> str:
    """A version of a memory and its content, in a message."""
    return f"{version[0]:06d}-{int(version[1]):03d}:{checksum}"


def read_stamp(text: str) -> tuple[Version, str]:
    """The inverse of `stamp`; refuses any other text."""
    parts = _STAMP.fullmatch(text)
    if parts is None:
        raise InputError(f"{text!r} is not the version of a memory")
    return (int(parts[1]), int(parts[2])), parts[3]


class Ledger:
    """Stamps of the sites' memories, by method and site, the oldest first."""

    def __init__(self, folder: Path, begun: bool) -> None:
        """Open the ledger of a run; it must exist if the run has `begun`."""
        self.path = folder / "memories.json"
        values = read_object(self.path)
        if values is None:
            if begun:
                raise InputError(
                    f"{self.path} is missing: it holds the name under which the sites keep their "
                    "memories of this run; restore it from a backup, or start a new run"
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
        """The stamp of a site's last memory before `version`; '' if unknown."""
        stamps = self._stamps.get(method, {}).get(site, [])
        older = [one for one in stamps if read_stamp(one)[0] < version]
        return older[-1] if older else ""

    def note(self, method: str, site: str, said: str, kept: int) -> None:
        """Record a site's new stamp, and drop stamps that are no longer needed after `kept`."""
        version, _ = read_stamp(said)
        sites = self._stamps.setdefault(method, {})
        stamps = [one for one in sites.get(site, []) if read_stamp(one)[0] < version] + [said]
        bygone = [one for one in stamps if read_stamp(one)[0] <= (kept, math.inf)]
        sites[site] = bygone[-1:] + stamps[len(bygone) :]

    def forget(self, site: str) -> None:
        """Drop a site's stamps, because the operator accepts whatever memory it has."""
        for sites in self._stamps.values():
            sites.pop(site, None)
        self.save()

    def save(self) -> None:
        """Write the ledger to its file."""
        values = {"run": self.run, "memories": self._stamps}
        write_atomically(self.path, json.dumps(values) + "\n")
