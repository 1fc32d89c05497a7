"""The data sets that pfedseq can read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pfedseq.data import cifar, domainnet, folder, omniglot, pacs, tiny_imagenet
from pfedseq.data.config import DataConfig
from pfedseq.data.file_table import open_file_table
from pfedseq.data.location import Location
from pfedseq.data.source import Source
from pfedseq.data.tabular import source_of_table
from pfedseq.errors import InputError
from pfedseq.plugins import Registry


@dataclass(frozen=True)
class DataSet:
    """One data set."""

    name: str
    summary: str
    """A one-line description."""
    formats: str
    """Accepted kinds of `data.source`."""
    open: Callable[[DataConfig, Location], Source] | None
    """The function that opens it; None for digits, which come with scikit-learn."""
    hub_id: str | None = None
    """Hub id to download from if no source is given."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Default options; for the paper's four data sets, from Section 5.1 and Appendix B."""
    unit: str = "image"
    """The word for one example."""
    published: bool = False
    """A published data set, prepared at the paper's size if only the name is given."""


def _open_hub(config: DataConfig, location: Location) -> Source:
    table = location.table()
    if table is None:
        raise InputError(
            f"{location} contains no parquet files; for image files set data.name = 'folder'"
        )
    return source_of_table(
        str(location) if location.path is None else location.path.stem,
        table,
        image_column=config.image_column,
        label_column=config.label_column,
        owner_column=config.owner_column,
        group_column=config.group_column,
    )


_AS_PFLLIB = {"split": "random", "validation_fraction": 0.1}
"""How published data sets are split, after the paper's Appendix B."""

_BUILT_IN = (
    DataSet(
        "digits",
        "scikit-learn's 1,797 handwritten digits; each client has its own scanner style",
        "comes with scikit-learn",
        None,
        defaults={"partition": "iid", "scanners": True, **_AS_PFLLIB},
    ),
    DataSet(
        "cifar100",
        "60,000 images of 100 classes; label skew Dir(0.1) over 10 clients",
        "folder of parquet files, cifar-100-python.tar.gz or its folder, hub id",
        lambda config, location: cifar.open_cifar("cifar100", location),
        "uoft-cs/cifar100",
        defaults={"partition": "dirichlet", **_AS_PFLLIB},
        published=True,
    ),
    DataSet(
        "tiny_imagenet",
        "110,000 images of 200 classes; label skew Dir(0.1) over 10 clients",
        "tiny-imagenet-200.zip or its folder, folder of parquet files, hub id",
        lambda config, location: tiny_imagenet.open_tiny_imagenet(location),
        "zh-plus/tiny-imagenet",
        defaults={"partition": "dirichlet", **_AS_PFLLIB},
        published=True,
    ),
    DataSet(
        "domainnet",
        "FedBN's ten classes in six domains, one client each",
        "folder of domain folders or zips with FedBN's lists, folder of parquet files, hub id",
        lambda config, location: domainnet.open_domainnet(location),
        "wltjr1007/DomainNet",
        defaults={"partition": "owners", "keep_test_split": True, **_AS_PFLLIB},
        published=True,
    ),
    DataSet(
        "omniglot",
        "32,460 characters of 50 alphabets by 20 drawers, one client each",
        "folder with images_background.zip and images_evaluation.zip, or with their folders",
        lambda config, location: omniglot.open_omniglot(location),
        defaults={"partition": "owners", **_AS_PFLLIB},
        published=True,
    ),
    DataSet(
        "cifar10",
        "60,000 images of 10 classes; also PerAda's auxiliary images",
        "folder of parquet files, cifar-10-python.tar.gz or its folder, hub id",
        lambda config, location: cifar.open_cifar("cifar10", location),
        "uoft-cs/cifar10",
        defaults={"partition": "dirichlet", **_AS_PFLLIB},
        published=True,
    ),
    DataSet(
        "pacs",
        "9,991 images of 7 classes in four domains, one client each",
        "zip or folder of domain/class folders, folder of parquet files, hub id",
        lambda config, location: pacs.open_pacs(location),
        "flwrlabs/pacs",
        defaults={"partition": "owners", **_AS_PFLLIB},
        published=True,
    ),
    DataSet(
        "folder",
        "your own images in folders; data.layout says what the folder levels name",
        "folder, zip or tar",
        lambda config, location: folder.open_folder(location, config.layout),
        defaults={"partition": "dirichlet"},
    ),
    DataSet(
        "hub",
        "your own or any Hugging Face image data set; columns by data.*_column",
        "hub id, or folder of parquet files",
        _open_hub,
        defaults={"partition": "dirichlet"},
    ),
    DataSet(
        "table",
        "your own image files, listed in a table: file_name, label, site[, group, split]",
        "CSV, TSV or parquet file; file names are relative to its folder",
        open_file_table,
        defaults={"partition": "owners"},
    ),
    DataSet(
        "arrays",
        "images passed from Python: pfedseq.run(config, out, data={...})",
        "none: arrays, PIL images or torch data sets, from Python only",
        None,
        defaults={"partition": "owners"},
    ),
    DataSet(
        "text",
        "your own texts: a CSV file with the columns client, label and text",
        "CSV file, or folder of .txt files",
        None,
        defaults={"partition": "owners"},
        unit="text",
    ),
    DataSet(
        "dialogue",
        "your own prompts and answers for a language model: a JSONL or text file per client",
        "folder with a .jsonl or .txt file, or a sub-folder, per client; or one .jsonl file",
        None,
        defaults={"partition": "owners", "max_tokens": 256},
        unit="dialogue",
    ),
    DataSet(
        "lab_notes",
        "measurements of scikit-learn's wines, in a different notation for each of eight clients",
        "comes with scikit-learn",
        None,
        defaults={"partition": "owners", "max_tokens": 96},
        unit="dialogue",
    ),
)
DATA_SETS = Registry("data set", "pfedseq.datasets", DataSet, _BUILT_IN)
"""Every data set by name; plug-ins come last."""
