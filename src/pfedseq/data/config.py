"""The `[data]` section of a run: the data set and its partition among clients."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from pfedseq.base_config import BaseConfig
from pfedseq.data.framing import WHOLE, Framing, Interpolation, Resize

if TYPE_CHECKING:
    from pfedseq.data.registry import DataSet
    from pfedseq.plugins import Registry

PartitionName = Literal["dirichlet", "iid", "pathological", "owners"]

USUAL_SIDE, DIGITS_SIDE = 224, 32
"""Pixels per side if no backbone sets them: the paper's, and the demo's."""


def default_store() -> Path:
    """The per-user cache folder, or the folder that the variable PFEDSEQ_CACHE names."""
    if chosen := os.environ.get("PFEDSEQ_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pfedseq"


class DataConfig(BaseConfig):
    """Data set, clients and splits; omitted fields take the data set's defaults."""

    model_config = ConfigDict(validate_default=True)

    name: str = Field("digits", description="the data set; `pfedseq datasets` lists them")
    source: str | None = Field(
        None,
        description="the folder, archive or Hugging Face id to read examples from; "
        "not needed for digits or for a data set that has been prepared",
    )
    store: Path | None = Field(
        None,
        description="folder of the prepared images (default: PFEDSEQ_CACHE, or the user's cache)",
    )
    image_size: int | None = Field(
        None,
        ge=8,
        le=1024,
        description="pixels per side (default: the size that the backbone was trained on; the "
        "paper's is 224)",
    )
    interpolation: Interpolation | None = Field(
        None,
        description="how images are resized (default: as the backbone's image processor does it, "
        "else `bicubic`)",
    )
    resize: Resize | None = Field(
        None,
        description="what is resized: `whole` images, whatever their shape, or their `shorter` "
        "side, after which the centre is cropped (default: as the backbone's image processor does "
        "it, else `whole`)",
    )
    resize_to: int | None = Field(
        None,
        ge=8,
        le=4096,
        description="with `resize`: pixels that a side is resized to before the centre of "
        "`image_size` pixels is cropped, such as 256 (default: `image_size`)",
    )
    layout: str = Field(
        "class",
        description="for `folder` and `text`: what each folder level names, such as `class`, "
        "`owner/class`, `owner/group/class` or `split/class`; `*` skips a level; if it names "
        "owners, `partition` defaults to `owners`",
    )
    window: tuple[float, float] | None = Field(
        None,
        description="for `folder`, `hub` and `table`: for images of more than 8 bits, the values "
        "that map to black and white, such as [0, 4095] (default: a DICOM file's own window, else "
        "each image's darkest and brightest value)",
    )
    skip_unreadable: bool = Field(
        False, description="leave out images that cannot be read, instead of refusing the data set"
    )
    image_column: str | None = Field(
        None,
        description="the column of images (default: for `hub` the only one that holds images, for "
        "`table` the column `file_name`)",
    )
    label_column: str | None = Field(
        None,
        description="for `hub`, `table` and `text`: the column of classes (default: label, "
        "labels or fine_label)",
    )
    text_column: str = Field("text", description="for `text`: the column of texts in a CSV file")
    max_tokens: int = Field(
        128,
        ge=2,
        description="for `text` and `dialogue`: number of tokens read per text; longer texts are "
        "truncated, dialogues from the start of the prompt",
    )
    owner_column: str | None = Field(
        None,
        description="for `hub`, `table` and `text`: the column that names each example's natural "
        "client (default: `site` of a table, `client` of texts); if given, `partition` defaults "
        "to `owners`",
    )
    group_column: str | None = Field(
        None,
        description="for `hub`, `table` and `text`: the column that names each example's patient, "
        "subject or scene, all of whose examples are put on one side of a client's split; for "
        "`folder` the level `group` of `layout` does so",
    )

    partition: PartitionName = Field(
        "iid",
        description="how examples are divided among clients: `dirichlet` and `pathological` skew "
        "the labels, `iid` divides evenly, `owners` uses the data's natural clients (domains, "
        "writers)",
    )
    scanners: bool = Field(
        False,
        description="for `digits` (default there): every client's images come from a different "
        "simulated scanner",
    )
    scanner_turn: float = Field(
        40.0,
        ge=0,
        le=90,  # beyond this a 6 and a 9 become indistinguishable
        description="maximum rotation by a scanner in degrees: how much clients differ",
    )
    num_scanners: int | None = Field(
        None,
        ge=1,
        description="number of scanners; with fewer scanners than clients, client i uses scanner i "
        "modulo this number, which gives groups of similar clients (default: one per client)",
    )
    partition_seed: int | None = Field(
        None,
        ge=0,
        lt=2**32,
        description="seed of the division among clients (default: the run's seed)",
    )
    num_clients: int | None = Field(
        None,
        ge=1,
        description="number of clients, 10 by default; with `owners`, keep only the owners with "
        "the most images (default: all of them)",
    )
    alpha: float = Field(
        0.1, gt=0, description="concentration of the Dirichlet partition; smaller is more skewed"
    )
    balanced: bool = Field(
        True,
        description="Dirichlet as in PFLlib: a client that already has an equal share of all "
        "images gets none of the remaining classes; false: plain Dirichlet",
    )
    classes_per_client: int = Field(
        2, ge=1, description="classes per client of the pathological partition"
    )
    min_samples: int | None = Field(
        None,
        ge=1,
        description="fewest images a client may have (default: for Dirichlet PFLlib's 40, or half "
        "an equal share if that is less; otherwise as many as the splits need)",
    )
    split_owners: int = Field(
        1, ge=1, description="with `owners`: split every owner into this many clients"
    )
    max_images_per_client: int | None = Field(
        None, ge=4, description="keep only this many random images of every client, for small runs"
    )

    split: Literal["stratified", "random"] = Field(
        "stratified",
        description="how a client's examples are split: `stratified` by class, with groups and "
        "copies kept on one side, or `random` as in PFLlib, which is the default for digits and "
        "the published data sets",
    )
    train_fraction: float = Field(
        0.75, gt=0, lt=1, description="share of a client's images used for training and validation"
    )
    validation_fraction: float = Field(
        0.2,
        ge=0,
        lt=1,
        description="share of the training images held out for validation; 0.1, the paper's, for "
        "digits and the published data sets",
    )
    keep_test_split: bool | None = Field(
        None,
        description="test on the source's own test images instead of a share 1 - train_fraction "
        "of all (default: true if a folder level or a table's column names the splits, and for "
        "DomainNet, as in the paper with FedBN's lists)",
    )

    @property
    def groups_named(self) -> bool:
        """Whether a folder level or a column names groups."""
        in_folder = self.name in ("folder", "text") and "group" in self.layout.split("/")
        return in_folder or self.group_column is not None

    @property
    def unit(self) -> str:
        """The word for one example: `image`, `text` or `dialogue`."""
        return _data_sets()[self.name].unit

    @property
    def side(self) -> int:
        """Pixels per side; a default if neither the config nor a backbone sets them."""
        return self.image_size or (DIGITS_SIDE if self.name == "digits" else USUAL_SIDE)

    @property
    def framing(self) -> Framing:
        """How images become squares."""
        return Framing(
            self.interpolation or WHOLE.interpolation, self.resize or WHOLE.resize, self.resize_to
        )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_name(cls, given: Any) -> Any:
        """Fill omitted fields with the data set's defaults."""
        if not isinstance(given, dict):
            return given
        name = given.get("name", "digits")
        known = _data_sets().get(str(name))
        defaults = dict(known.defaults) if known else {}
        names_owners = "owner" in str(given.get("layout", "")).split("/")
        if name == "text" and not names_owners and not str(given.get("source")).endswith(".csv"):
            defaults["partition"] = "dirichlet"
        if (name == "folder" and names_owners) or (name == "hub" and given.get("owner_column")):
            defaults["partition"] = "owners"
        partition = given.get("partition", defaults.get("partition"))
        defaults["num_clients"] = None if partition == "owners" else 10
        return {**defaults, **given}

    @field_validator("name")
    @classmethod
    def _registered(cls, name: str, info: ValidationInfo) -> str:
        """Check that the data set is known, unless only results are read."""
        if not (info.context or {}).get("only_look"):
            _data_sets().find(name)
        return name

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        """Refuse contradictory options."""
        if self.scanners and self.name != "digits":
            raise ValueError(
                f"scanners only apply to digits, not to {self.name}: set data.scanners = false"
            )
        if self.num_scanners is not None and not self.scanners:
            raise ValueError(
                f"num_scanners = {self.num_scanners} needs scanners = true (digits only)"
            )
        if self.partition != "owners" and self.split_owners != 1:
            raise ValueError(
                f"split_owners = {self.split_owners} needs partition = 'owners', not "
                f"{self.partition!r}"
            )
        if self.partition != "owners" and self.num_clients is None:
            raise ValueError(f"partition {self.partition!r} needs num_clients")
        smallest, largest = self.min_samples, self.max_images_per_client
        if smallest is not None and largest is not None and smallest > largest:
            raise ValueError(
                f"min_samples = {smallest} is more than max_images_per_client = {largest}"
            )
        needed = {
            "folder": "the folder of images",
            "hub": "a hub id or parquet folder",
            "table": "a CSV or parquet file (file_name,label,site)",
            "text": "a CSV file (client,label,text) or a folder of .txt files",
            "dialogue": "a folder with a .jsonl or .txt file per client, or one .jsonl file",
        }
        if self.name in needed and not self.source:
            raise ValueError(f"the data set {self.name!r} needs source: {needed[self.name]}")
        if self.name in ("folder", "text"):
            _check_layout(self.layout)
        if self.split == "random" and self.groups_named:
            raise ValueError("split = 'random' would split groups: use split = 'stratified'")
        if self.window is not None and self.name not in ("folder", "hub", "table"):
            raise ValueError(
                f"window is for folder, hub and table; {self.name} has 8-bit images only"
            )
        if self.resize_to is not None and self.resize is None:
            raise ValueError("resize_to needs resize = 'shorter' or 'whole'")
        if self.resize_to is not None and self.resize_to < self.side:
            raise ValueError(
                f"resize_to = {self.resize_to} is less than the {self.side} pixels a side that are "
                "cropped (image_size)"
            )
        if self.window is not None and not self.window[0] < self.window[1]:
            raise ValueError(f"window = {list(self.window)} must be [low, high] with low < high")
        return self


def unit_of(name: object) -> str | None:
    """The word for one example of a data set; None for an unknown data set."""
    known = _data_sets().get(str(name))
    return known.unit if known else None


def _data_sets() -> "Registry[DataSet]":
    """The registered data sets; imported late, since the registry imports this module."""
    from pfedseq.data.registry import DATA_SETS

    return DATA_SETS


def _check_layout(layout: str) -> None:
    levels = layout.split("/")
    once = ("owner", "group", "split")
    unknown = [level for level in levels if level not in ("class", *once, "*")]
    if unknown:
        raise ValueError(
            f"layout {layout!r} has the unknown level {unknown[0]!r}: use class, owner, group, "
            "split or *"
        )
    if levels.count("class") != 1 or any(levels.count(level) > 1 for level in once):
        raise ValueError(
            f"layout {layout!r} must name class exactly once, and owner, group and split at most "
            "once"
        )
