"""What a site's owner says of it: by the options of `pfedseq flower site`, or a node config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pfedseq.errors import InputError

KNOWN = ("name", "partition-id", "num-partitions", "data", "state", "backbone", "device")
"""What a node config may say."""


@dataclass(frozen=True)
class SiteConfig:
    """What a site's owner says of it."""

    name: str
    folder: Path
    """Where the client's memory and personal models are kept."""
    partition: int | None = None
    data: Path | None = None
    """A folder of images, or a TOML file with a [data] section."""
    backbone: str | None = None
    """Where the backbone lies at this site, if not where the server's config says."""
    device: str | None = None

    @classmethod
    def read(cls, node: Mapping[str, Any], run: Mapping[str, Any]) -> SiteConfig:
        """From the node config; only Flower's simulation, which has none, takes the run's folder.

        Raises InputError for what a site cannot be without.
        """
        unknown = sorted(set(node) - set(KNOWN))
        if unknown:
            raise InputError(
                f"the node config has the unknown key {unknown[0]!r}: known are {', '.join(KNOWN)}"
            )
        partition = node.get("partition-id")
        if partition is None and "data" not in node:
            raise InputError(
                'the node config names no data: give data="/folder/of/images", or partition-id=0 '
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
                "the node config names no folder for the client's memory: give "
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
