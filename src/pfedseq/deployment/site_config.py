"""A site's settings by its owner: options of `pfedseq flower site`, or a node config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedseq.errors import InputError

KNOWN = ("name", "partition-id", "num-partitions", "data", "state", "backbone", "device")
"""The keys of a node config."""


@dataclass(frozen=True)
class SiteConfig:
    """A site's settings."""

    name: str
    folder: Path
    """The folder of the client's memory and personal models."""
    partition: int | None = None
    data: Path | None = None
    """A folder of images, or a TOML file with a [data] section."""
    backbone: str | None = None
    """The path of the backbone at this site, if it differs from the server's config."""
    device: str | None = None

    @classmethod
    def read(cls, node: Mapping[str, Any], run: Mapping[str, Any]) -> SiteConfig:
        """Read a node config; Flower's simulation, which has no state, uses the run's folder.

        Raises InputError if a required key is missing.
        """
        unknown = sorted(set(node) - set(KNOWN))
        if unknown:
            raise InputError(
                f"the node config has the unknown key {unknown[0]!r}: use {', '.join(KNOWN)}"
            )
        partition = node.get("partition-id")
        if partition is None and "data" not in node:
            raise InputError(
                'the node config names no data: set data="/folder/of/images", or partition-id=0 '
                "for a part of the run's own data set"
            )
        name = str(node.get("name", partition if partition is not None else ""))
        if not name:
            raise InputError('the node config needs a name, such as name="clinic-a"')
        if "state" in node:
            folder = Path(str(node["state"])).expanduser()
        elif "num-partitions" in node and run.get("sites"):
            folder = Path(str(run["sites"])) / f"site_{name}"
        else:
            raise InputError(
                "the node config names no folder for the client's memory: set "
                'state="/folder/of/this/site"'
            )
        return cls(
            name,
            folder,
            None if partition is None else int(partition),
            Path(str(node["data"])).expanduser() if "data" in node else None,
            str(node["backbone"]) if "backbone" in node else None,
            str(node["device"]) if "device" in node else None,
        )
