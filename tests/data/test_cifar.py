import io
import pickle
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_samples import png, truncated
from PIL import Image

from pfedseq.data.cifar import open_cifar
from pfedseq.data.decode import decode
from pfedseq.data.location import locate
from pfedseq.errors import InputError


def sample_rows(shared_data, count=40):
    """Real pixels and labels, as the original archives lay them out: (n, 3072), red plane first."""
    table = pq.read_table(shared_data / "cifar100/train-00000-of-00001.parquet").slice(0, count)
    pixels = [
        np.asarray(Image.open(io.BytesIO(image["bytes"]))).transpose(2, 0, 1).reshape(-1)
        for image in table["img"].to_pylist()
    ]
    return np.stack(pixels), table["fine_label"].to_pylist()


def tar_of(path, members, folder="cifar-100-python"):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            data = content if isinstance(content, bytes) else pickle.dumps(content, protocol=2)
            member = tarfile.TarInfo(name if "/" in name else f"{folder}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def batches(pixels, labels, cut):
    def batch(rows):
        return {"data": pixels[rows], "fine_labels": labels[rows], "filenames": ["x.png"]}

    return {"train": batch(slice(0, cut)), "test": batch(slice(cut, None))}


def read_all(source):
    return [raw for block in source.blocks for raw in block.read()]


def test_the_parquet_sample_is_read_and_called_a_part(shared_data):
    source = open_cifar("cifar100", locate(str(shared_data / "cifar100")))
    assert len(source.labels) == 12_000
    assert (np.bincount(source.labels) == 120).all()
    assert source.is_test.sum() == 2_000
    assert not source.is_test[:10_000].any()  # training first: the order PFLlib merges
    assert source.class_names[:3] == ("apple", "aquarium_fish", "baby")
    assert len(set(source.class_names)) == 100
    assert source.notes == ("only part of cifar100: 12,000 of 60,000 images",)
    assert sum(block.size for block in source.blocks) == 12_000
    table = pq.read_table(shared_data / "cifar100/test-00000-of-00001.parquet")
    where, content = list(source.blocks[-1].read())[-1]
    assert content == table["img"][-1].as_py()["bytes"]
    assert "test-00000-of-00001.parquet" in where


def test_the_auxiliary_cifar10_sample_is_read(shared_data):
    source = open_cifar("cifar10", locate(str(shared_data / "cifar10")))
    assert len(source.labels) == 2_000
    assert source.class_names[0] == "airplane"
    assert source.is_test is None


@pytest.mark.parametrize("unpacked", [False, True])
def test_the_original_archive_gives_the_same_images_as_parquet(shared_data, tmp_path, unpacked):
    pixels, labels = sample_rows(shared_data)
    path = tar_of(tmp_path / "cifar-100-python.tar.gz", batches(pixels, labels, 30))
    if unpacked:
        with tarfile.open(path) as archive:
            archive.extractall(tmp_path / "here", filter="data")
        path = tmp_path / "here"
    source = open_cifar("cifar100", locate(str(path)))
    assert source.labels.tolist() == labels
    assert source.is_test.tolist() == [False] * 30 + [True] * 10
    parquet = open_cifar("cifar100", locate(str(shared_data / "cifar100")))
    ours, theirs = read_all(source), list(parquet.blocks[0].read())
    for number in (0, 29, 39):
        np.testing.assert_array_equal(
            decode(ours[number], 48).pixels, decode(theirs[number], 48).pixels
        )


def test_cifar10s_five_batches_are_joined_in_order(tmp_path):
    members = {
        f"data_batch_{n}": {"data": np.full((2, 3072), n, np.uint8), "labels": [n, n]}
        for n in range(1, 6)
    }
    members["test_batch"] = {"data": np.zeros((1, 3072), np.uint8), "labels": [9]}
    path = tar_of(tmp_path / "cifar-10-python.tar.gz", members, "cifar-10-batches-py")
    source = open_cifar("cifar10", locate(str(path)))
    assert source.labels.tolist() == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 9]
    first_pixels = [int(pixels[0, 0, 0]) for _, pixels in read_all(source)]
    assert first_pixels == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 0]


def test_broken_archives_are_one_sentence(shared_data, tmp_path):
    pixels, labels = sample_rows(shared_data)
    good = batches(pixels, labels, 30)
    whole = tar_of(tmp_path / "whole.tar.gz", good)

    def refusal(members, sentence):
        path = tar_of(tmp_path / "broken.tar.gz", members)
        with pytest.raises(InputError, match=sentence):
            open_cifar("cifar100", locate(str(path)))

    with pytest.raises(InputError, match="is not a complete CIFAR archive"):
        open_cifar("cifar100", locate(str(truncated(whole, tmp_path / "cut.tar.gz"))))
    refusal({"train": good["train"]}, "does not contain test")
    refusal({**good, "train": b"no pickle"}, r"train in .* is not a readable pickle")
    refusal(
        {**good, "train": {"data": good["train"]["data"]}},
        "not have a label .fine_labels",
    )
    refusal({**good, "train": [1, 2]}, "contains no images")
    refusal({**good, "../../train": b""}, "points outside the archive")
    wrong = {"data": pixels[:2], "fine_labels": [3, 100]}
    refusal({**good, "test": wrong}, r"image 1 of test in .* has the label 100, which is not betw")
    evil = b"cposix\nsystem\n(S'touch " + str(tmp_path / "marker").encode() + b"'\ntR."
    refusal({**good, "test": evil}, r"is refused: it contains a reference to posix\.system")
    assert not (tmp_path / "marker").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="neither parquet files nor CIFAR's train"):
        open_cifar("cifar100", locate(str(tmp_path / "empty")))


def test_broken_parquet_is_one_sentence(shared_data, tmp_path):
    original = shared_data / "cifar100/test-00000-of-00001.parquet"
    folder = tmp_path / "cifar100"
    folder.mkdir()
    broken = folder / "test-00000-of-00001.parquet"
    truncated(original, broken)
    with pytest.raises(InputError, match="is not a complete parquet file"):
        open_cifar("cifar100", locate(str(folder)))
    table = pq.read_table(original)
    labels = table["fine_label"].to_numpy().copy()
    labels[77] = 100
    pq.write_table(table.set_column(1, "fine_label", pa.array(labels)), broken)
    with pytest.raises(InputError, match=r"row 77 of .* has the fine_label 100, which is not"):
        open_cifar("cifar100", locate(str(folder)))
    pq.write_table(table.drop_columns(["fine_label"]), broken)
    with pytest.raises(InputError, match=r"has no label column 'fine_label': its columns are img"):
        open_cifar("cifar100", locate(str(folder)))
    pq.write_table(table, broken)
    content = bytearray(broken.read_bytes())
    content[1000:60_000] = bytes(59_000)
    broken.write_bytes(content)
    source = open_cifar("cifar100", locate(str(folder)))
    with pytest.raises(InputError, match=r"00001\.parquet (is damaged|is not a readable image)"):
        [decode(raw, 8).pixels for raw in read_all(source)]


def test_more_images_than_were_published_are_refused(tmp_path):
    count = 601
    table = pa.table({"img": [{"bytes": png(), "path": ""}] * count, "fine_label": [4] * count})
    pq.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    with pytest.raises(InputError, match="has 601 images of class 'beaver', but cifar100 has only"):
        open_cifar("cifar100", locate(str(tmp_path)))
