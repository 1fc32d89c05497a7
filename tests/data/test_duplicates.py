"""Copies are found for certain, images that look alike mostly, and others not at all."""

import io

import numpy as np
from PIL import Image

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.data.decode import decode
from pfedseq.data.duplicates import checksums, copies, image_hashes, look_alike


def photos(number, side=48, seed=0):
    """Smooth pictures that have nothing in common."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (number, 6, 6, 3), dtype=np.uint8)
    return [
        np.asarray(Image.fromarray(cells).resize((side, side), Image.Resampling.BICUBIC))
        for cells in small
    ]


def stored(pictures, side=32):
    return np.stack([decode(("", picture), side).pixels for picture in pictures])


def as_jpeg(picture, quality):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def test_checksums_tell_contents_apart():
    found = checksums([b"a", b"b", b"a", b""])
    assert found[0] == found[2]
    assert len(set(found.tolist())) == 3


def test_copies_have_equal_checksums_and_others_not():
    pictures = photos(20)
    hashes = image_hashes(stored([*pictures, pictures[3]]))
    assert hashes[3, 0] == hashes[20, 0]
    assert len(set(hashes[:, 0].tolist())) == 20


def test_the_difference_hash_is_that_of_a_slow_reference():
    (picture,) = stored(photos(1), side=36)
    (found,) = image_hashes(picture[None])[:, 1]
    grey = picture.mean(axis=0)
    expected = 0
    for row in range(8):
        cells = [
            grey[row * 36 // 8 : (row + 1) * 36 // 8, c * 4 : (c + 1) * 4].mean() for c in range(9)
        ]
        for column in range(8):
            expected |= int(cells[column] > cells[column + 1]) << (8 * row + column)
    assert int(found) == expected


def test_recompressed_photos_are_found_and_strangers_are_not():
    pictures = photos(60)
    again = [as_jpeg(pictures[i], 85) for i in range(10)]
    images = stored([*pictures, *again])
    pairs = look_alike(images, image_hashes(images))
    assert set(pairs) <= {(i, 60 + i) for i in range(10)}
    assert len(pairs) >= 9
    assert look_alike(images[:60], image_hashes(images[:60])) == []


def test_photos_of_one_shape_and_another_brightness_are_not_alike():
    (picture,) = photos(1)
    images = stored([picture, picture // 2])
    hashes = image_hashes(images)
    assert look_alike(images, hashes) == []


def test_copies_themselves_are_not_called_alike():
    images = stored(photos(1) * 3)
    assert look_alike(images, image_hashes(images)) == []
    assert look_alike(images[:0], image_hashes(images[:0])) == []


def held(images, labels, clients):
    """The notes about clients that hold these images; a client is (train, validation, test)."""
    examples = ImageSet(
        name="photos",
        labels=np.array(labels),
        class_names=("cat", "dog"),
        owners=None,
        owner_names=(),
        is_test=None,
        fingerprint="",
        images=images,
        hashes=image_hashes(images),
    )
    parts = [[np.array(part, dtype=np.int64) for part in client] for client in clients]
    return copies(examples, [ClientData(name, *p) for name, p in zip("abc", parts, strict=False)])


def test_lookalikes_at_several_clients_are_noted_where_one_is_tested_and_the_other_trained_on():
    pictures = photos(12)
    images = stored([*pictures, as_jpeg(pictures[0], 85), as_jpeg(pictures[1], 85)])
    labels = [0] * 14
    rest = [[6, 7], [8], [9]]
    assert held(images, labels, [([0, 2, 3], [4], [5]), ([6, 7], [8], [9, 12])]) == [
        "1 test image looks almost like a training image of another client (b): scores may be "
        "too good"
    ]
    swapped = held(images, labels, [([12, 13, 3], [4], [5]), ([6, 7], [8], [0, 1]), rest])
    assert swapped[0].startswith("2 test images look almost like a training image of another")
    assert "(b)" in swapped[0]
    assert held(images, labels, [([0, 2, 3], [4], [5]), ([6, 12], [8], [9])]) == []
    assert held(images, labels, [([2, 3], [4], [0]), ([6, 7], [8], [12])]) == []
    assert held(images, labels, [([2, 3], [4], [5]), ([6, 7], [8], [9, 12])]) == [], "0 is nobody's"
    (own,) = held(images, labels, [([0, 2, 3], [4], [12]), ([6, 7], [8], [9])])
    assert "of the same client (a)" in own


def test_copies_with_different_classes_are_noted():
    pictures = photos(8)
    images = stored([*pictures, pictures[0], pictures[1]])
    clients = [([0, 2, 8], [3], [4]), ([5, 9], [6], [7, 1])]
    said = held(images, [0] * 8 + [1, 0], clients)
    assert said[-1] == "1 image occurs with different classes (a): check the labels"
    assert len(said) == 2
    assert len(held(images, [0] * 10, clients)) == 1
    across = held(images, [0, 1] + [0] * 8, [([0, 2, 9], [3], [4]), ([5, 8], [6], [7, 1])])
    assert across[-1] == "1 image occurs with different classes (a, b): check the labels"
