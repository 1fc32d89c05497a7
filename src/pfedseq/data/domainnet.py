"""DomainNet (Peng et al. 2019) as FedBN uses it: ten classes, six domains, one client per domain.

The images are in per-domain folders or zip archives (`clipart/bird/clipart_031_000001.jpg`).
FedBN (Li et al. 2021) publishes its train/test lists as pickles, `{domain}_train.pkl` and
`{domain}_test.pkl`, each a pair (paths, class names). They are expected beside the images, in a
folder or zip archive of any name.
"""

from pathlib import PurePosixPath
from typing import Any

from pfedseq.data.file_tree import FileTree
from pfedseq.data.location import Location
from pfedseq.data.safe_pickle import read_pickle
from pfedseq.data.source import Entry, Source, compare_with_full, source_of_files
from pfedseq.data.tabular import source_of_table
from pfedseq.errors import InputError

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
CLASSES = (
    *("bird", "feather", "headphones", "ice_cream", "teapot"),
    *("tiger", "whale", "windmill", "wine_glass", "zebra"),
)
LISTED = (2_629, 3_283, 3_091, 5_000, 6_081, 2_767)
"""Images per domain in FedBN's lists, train and test together."""


def open_domainnet(location: Location) -> Source:
    """The ten classes, by domain. With FedBN's lists, exactly the listed images."""
    table = location.table()
    if table is not None:
        return source_of_table(
            "domainnet",
            table,
            label_column="label",
            owner_column="domain",
            only_classes=CLASSES,
            known_owners=DOMAINS,
        )
    path = location.folder_or_archive("the folder of DomainNet's domains")
    tree = FileTree(path, open_zips=True)
    images = _images_by_place(tree)
    entries = _listed(tree, images)
    if entries is None:
        found = [Entry(images[place], place[1], place[0]) for place in sorted(images)]
        if not found:
            raise InputError(
                f"{path} has no images of DomainNet's ten classes: expected folders such as "
                f"{DOMAINS[0]}/{CLASSES[0]}"
            )
        return source_of_files("domainnet", found, tree, class_names=CLASSES, owner_names=DOMAINS)
    source = source_of_files(
        "domainnet", entries, tree, class_names=CLASSES, owner_names=DOMAINS, has_test=True
    )
    return compare_with_full(source, LISTED, by="owner", where=path)


Place = tuple[str, str, str]
"""(domain, class, file name), which names an image wherever the folders were unpacked."""


def _images_by_place(tree: FileTree) -> dict[Place, str]:
    images = {}
    for name in tree.images():
        parts = PurePosixPath(name).parts
        if len(parts) >= 3 and parts[-3] in DOMAINS and parts[-2] in CLASSES:
            images[parts[-3], parts[-2], parts[-1]] = name
    return images


def _listed(tree: FileTree, images: dict[Place, str]) -> list[Entry] | None:
    """The images of FedBN's lists, in their order, or None if there are no lists."""
    lists = {
        PurePosixPath(n).name: n for n in tree.names() if n.endswith(("_train.pkl", "_test.pkl"))
    }
    if not lists:
        return None
    entries = []
    for domain in DOMAINS:
        for split in ("train", "test"):
            file = f"{domain}_{split}.pkl"
            if file not in lists:
                raise InputError(f"{tree.path} has some of FedBN's lists, but no {file}")
            where = tree.describe(lists[file])
            pairs = _read_list(read_pickle(tree.read(lists[file]), where), where)
            for path, label in pairs:
                place = _place(path, label, domain, where)
                if place not in images:
                    raise InputError(f"{where} lists {path}, which is not in {tree.path}")
                entries.append(Entry(images[place], label, domain, is_test=split == "test"))
    return entries


def _read_list(content: Any, where: str) -> list[tuple[str, str]]:
    """FedBN's pair of equally long sequences of strings, as (path, label) pairs."""
    try:
        paths, labels = content
        pairs = [(str(path), str(label)) for path, label in zip(paths, labels, strict=True)]
    except (TypeError, ValueError) as fault:
        raise InputError(f"{where} is not a pair of equally long lists") from fault
    return pairs


def _place(path: str, label: str, domain: str, where: str) -> Place:
    parts = PurePosixPath(path).parts
    if ".." in parts or path.startswith("/"):
        raise InputError(f"{where} is refused: it lists {path}, which is outside the data folder")
    if len(parts) < 3 or parts[-3] != domain:
        raise InputError(f"{where} lists {path}, which is not an image of {domain}")
    if label not in CLASSES or parts[-2] != label:
        raise InputError(f"{where} gives {path} the wrong label {label!r}")
    return domain, label, parts[-1]
