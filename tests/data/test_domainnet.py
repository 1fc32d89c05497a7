import pickle
import zipfile

import numpy as np
import pytest
from data_samples import copy_zip, png

from pfedseq.data import DataConfig, load_data
from pfedseq.data.domainnet import CLASSES, DOMAINS, open_domainnet
from pfedseq.data.location import locate
from pfedseq.data.safe_pickle import read_pickle
from pfedseq.errors import InputError


def listed_paths(lists):
    with zipfile.ZipFile(lists) as archive:
        for name in archive.namelist():
            paths, _ = read_pickle(archive.read(name), name)
            yield from paths.tolist()


def test_fedbns_real_lists_pick_their_images_and_keep_their_split(shared_data, tmp_path):
    lists = shared_data / "domainnet/fedbn_split.zip"
    copy_zip(lists, tmp_path / "split.zip")
    unlisted = ["DomainNet/clipart/bird/more.jpg", "DomainNet/clipart/airplane/other_class.jpg"]
    image = png()
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as images:
        for path in (*listed_paths(lists), *unlisted):
            images.writestr(path, image)
    source = open_domainnet(locate(str(tmp_path)))
    assert source.owner_names == DOMAINS
    assert source.class_names == CLASSES
    train = np.bincount(source.owners[~source.is_test]).tolist()
    test = np.bincount(source.owners[source.is_test]).tolist()
    assert train == [2_103, 2_626, 2_472, 4_000, 4_864, 2_213]
    assert test == [526, 657, 619, 1_000, 1_217, 554]
    assert source.notes == ()


def small(tmp_path, *, lists=True, change=None):
    """Eight images per domain, in domain folders, with lists of six and two."""
    for domain in DOMAINS:
        split = {"train": ([], []), "test": ([], [])}
        for number in range(8):
            label = CLASSES[number]
            path = f"{domain}/{label}/{domain}_{number}.jpg"
            file = tmp_path / "data" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(number))
            paths, labels = split["test" if number >= 6 else "train"]
            paths.append(f"DomainNet/{path}")
            labels.append(label)
        if lists:
            (tmp_path / "data/split").mkdir(exist_ok=True)
            for name, (paths, labels) in split.items():
                pair = (np.array(paths), np.array(labels))
                if change and (domain, name) == ("real", "test"):
                    pair = change(pair)
                file = tmp_path / f"data/split/{domain}_{name}.pkl"
                file.write_bytes(pickle.dumps(pair))
    return tmp_path / "data"


def test_each_domain_is_a_client_tested_on_fedbns_test_images(tmp_path):
    config = DataConfig(
        name="domainnet",
        source=str(small(tmp_path)),
        image_size=8,
        store=tmp_path / "store",
    )
    data = load_data(config, seed=1)
    assert [client.name for client in data.clients] == list(DOMAINS)
    for client in data.clients:
        assert (len(client.train), len(client.validation), len(client.test)) == (5, 1, 2)
        assert sorted(data.examples.labels[client.test]) == [6, 7]
    resplit = load_data(config.model_copy(update={"keep_test_split": False}), seed=1)
    assert {len(client.test) for client in resplit.clients} == {2}
    assert any(sorted(resplit.examples.labels[c.test]) != [6, 7] for c in resplit.clients)


def test_without_lists_there_is_no_split_to_keep(tmp_path):
    folder = small(tmp_path, lists=False)
    source = open_domainnet(locate(str(folder)))
    assert len(source.labels) == 48
    assert source.is_test is None
    config = DataConfig(
        name="domainnet", source=str(folder), image_size=8, store=tmp_path / "store"
    )
    with pytest.raises(InputError, match="no test images to keep"):
        load_data(config, seed=0)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda p: (np.append(p[0], "../../etc/passwd"), np.append(p[1], "bird")),
            "is outside the data folder",
        ),
        (
            lambda p: (np.append(p[0], "DomainNet/real/bird/no.jpg"), np.append(p[1], "bird")),
            r"lists DomainNet/real/bird/no\.jpg, which is not in",
        ),
        (lambda p: (p[0], np.array(["bird", "zebra"])), "the wrong label 'bird'"),
        (lambda p: (p[0], p[1][:1]), "is not a pair of equally long lists"),
        (
            lambda p: (np.array(["a/sketch/bird/x.jpg"]), np.array(["bird"])),
            "which is not an image of real",
        ),
        (lambda p: {"paths": print}, r"is refused: it contains a reference to builtins\.print"),
        (lambda p: 5, "is not a pair"),
    ],
    ids=["outside", "missing", "label", "length", "domain", "code", "number"],
)
def test_broken_lists_are_one_sentence(tmp_path, change, sentence):
    with pytest.raises(InputError, match=rf"real_test\.pkl.*{sentence}"):
        open_domainnet(locate(str(small(tmp_path, change=change))))


def test_a_missing_list_or_folder_is_one_sentence(tmp_path):
    folder = small(tmp_path)
    (folder / "split/sketch_train.pkl").unlink()
    with pytest.raises(InputError, match=r"some of FedBN's lists, but no sketch_train\.pkl"):
        open_domainnet(locate(str(folder)))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="has no images of DomainNet's ten classes"):
        open_domainnet(locate(str(tmp_path / "empty")))


def test_the_hubs_parquet_is_cut_to_the_ten_classes(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the hub extra is not installed")
    names = sorted([*CLASSES, "airplane", "zigzag"])
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=names),
            "domain": datasets.ClassLabel(names=list(reversed(DOMAINS))),
        }
    )
    rows = {
        "image": [{"bytes": png(i), "path": None} for i in range(36)],
        "label": [i % 12 for i in range(36)],
        "domain": [i // 6 for i in range(36)],
    }
    for split in ("train", "test"):
        path = tmp_path / f"{split}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    source = open_domainnet(locate(str(tmp_path)))
    kept = [i for i in range(36) if names[i % 12] in CLASSES]
    assert len(source.labels) == 2 * len(kept)
    assert [source.class_names[label] for label in source.labels[: len(kept)]] == [
        names[i % 12] for i in kept
    ]
    assert source.owner_names == DOMAINS
    assert source.owners[: len(kept)].tolist() == [5 - i // 6 for i in kept]
    assert source.is_test.sum() == len(kept)
    raws = [raw[1] for block in source.blocks for raw in block.read()]
    assert raws[: len(kept)] == [png(i) for i in kept]
