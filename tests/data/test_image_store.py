import io
import json
import multiprocessing
import os
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
from data_samples import png
from PIL import Image

from pfedseq.data import store_writer
from pfedseq.data.decode import decode
from pfedseq.data.image_store import open_store, verify_store
from pfedseq.data.source import Block, Source
from pfedseq.data.store_writer import write_store
from pfedseq.errors import InputError

ORIGIN = {"source": "made up", "fingerprint": "1"}


def make_source(num_blocks=4, block_size=5, read=None):
    def reader(number):
        start = number * block_size
        return lambda: [(f"image {i}", png(i, (9, 7))) for i in range(start, start + block_size)]

    count = num_blocks * block_size
    return Source(
        name="toy",
        labels=np.arange(count) % 3,
        class_names=("a", "b", "c"),
        owners=np.arange(count) % 2,
        owner_names=("left", "right"),
        is_test=np.arange(count) >= count - 2,
        blocks=tuple(Block(block_size, (read or reader)(n)) for n in range(num_blocks)),
        notes=("made up",),
    )


def left_over(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_the_stored_pixels_are_pillows_bicubic_ones(tmp_path):
    source = make_source()
    seen = []
    write_store(source, tmp_path / "toy", 16, ORIGIN, lambda *progress: seen.append(progress))
    images = open_store(tmp_path / "toy")
    assert isinstance(images.images, np.memmap)
    assert not images.images.flags.writeable
    for number in (0, 7, 19):
        original = Image.open(io.BytesIO(png(number, (9, 7))))
        expected = np.asarray(original.resize((16, 16), Image.Resampling.BICUBIC))
        np.testing.assert_array_equal(images.images[number], expected.transpose(2, 0, 1))
    np.testing.assert_array_equal(images.labels, source.labels)
    np.testing.assert_array_equal(images.owners, source.owners)
    np.testing.assert_array_equal(images.is_test, source.is_test)
    assert (images.class_names, images.owner_names) == (("a", "b", "c"), ("left", "right"))
    assert left_over(tmp_path) == ["toy"]
    assert seen[0] == ("reading images", 0, 20)
    assert ("reading images", 20, 20) in seen
    verify_store(tmp_path / "toy")


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "LA"])
def test_every_colour_mode_becomes_rgb_before_it_is_resized(mode):
    out = io.BytesIO()
    Image.open(io.BytesIO(png(1, (9, 7)))).convert(mode).save(
        out, "TIFF" if mode == "CMYK" else "PNG"
    )
    expected = Image.open(io.BytesIO(out.getvalue())).convert("RGB")
    expected = np.asarray(expected.resize((12, 12), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
    np.testing.assert_array_equal(decode(("here", out.getvalue()), 12).pixels, expected)


def test_a_photograph_is_turned_as_its_camera_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held sideways: turn by 270 degrees
    out = io.BytesIO()
    Image.open(io.BytesIO(png(2))).save(out, "PNG", exif=exif)
    upright = decode(("here", png(2)), 8).pixels
    np.testing.assert_array_equal(
        decode(("here", out.getvalue()), 8).pixels, np.rot90(upright, -1, (1, 2))
    )


def test_an_interrupted_store_is_continued_where_it_stopped(tmp_path):
    reads = []

    def reader(number, fail):
        def read():
            if fail and number == 2:
                raise KeyboardInterrupt
            reads.append(number)
            return [(f"image {i}", png(i)) for i in range(number * 5, number * 5 + 5)]

        return read

    broken = make_source(read=lambda number: reader(number, fail=True))
    with pytest.raises(KeyboardInterrupt):
        write_store(broken, tmp_path / "toy", 8, ORIGIN)
    assert left_over(tmp_path) == ["toy.partial"]
    lines = (tmp_path / "toy.partial/journal.jsonl").read_text().splitlines()
    journalled = [json.loads(line)[0] for line in lines]
    reads.clear()
    write_store(make_source(read=lambda n: reader(n, fail=False)), tmp_path / "toy", 8, ORIGIN)
    assert sorted(reads) == [n for n in range(4) if n not in journalled]
    assert 2 in reads
    write_store(make_source(), tmp_path / "other", 8, ORIGIN)
    whole = open_store(tmp_path / "other").images
    assert whole.shape == open_store(tmp_path / "toy").images.shape
    verify_store(tmp_path / "toy")


def test_a_journalled_block_whose_pixels_were_lost_is_read_again(tmp_path):
    gate = threading.Event()

    def stopping(number):
        def read():
            if number == 3:
                gate.wait(10)
                raise KeyboardInterrupt
            return [(f"image {i}", png(i)) for i in range(number * 5, number * 5 + 5)]

        return read

    def open_gate(stage, done, total):
        if done >= 15:
            gate.set()

    with pytest.raises(KeyboardInterrupt):
        write_store(make_source(read=stopping), tmp_path / "toy", 8, ORIGIN, open_gate)
    half_made = np.lib.format.open_memmap(tmp_path / "toy.partial/images.npy", "r+")
    half_made[6] = 0
    half_made.flush()

    def plain(number):
        return lambda: [(f"image {i}", png(i)) for i in range(number * 5, number * 5 + 5)]

    write_store(make_source(read=plain), tmp_path / "toy", 8, ORIGIN)
    np.testing.assert_array_equal(
        open_store(tmp_path / "toy").images[6], decode(("", png(6)), 8).pixels
    )


def test_a_half_made_store_of_another_origin_is_not_continued(tmp_path):
    def failing(number):
        def read():
            raise KeyboardInterrupt

        return read

    with pytest.raises(KeyboardInterrupt):
        write_store(make_source(read=failing), tmp_path / "toy", 8, ORIGIN)
    (tmp_path / "toy.partial/stale").write_text("from before")
    write_store(make_source(), tmp_path / "toy", 8, {**ORIGIN, "fingerprint": "2"})
    assert sorted(os.listdir(tmp_path / "toy")) == ["images.npy", "manifest.json", "samples.npy"]


def test_a_corrupt_image_leaves_nothing_behind(tmp_path):
    def reader(number):
        return lambda: [(f"image {i}", b"not an image" if i == 7 else png(i)) for i in range(5, 10)]

    with pytest.raises(InputError, match="image 7 is not a readable image"):
        write_store(make_source(read=reader), tmp_path / "toy", 8, ORIGIN)
    assert left_over(tmp_path) == []
    write_store(make_source(), tmp_path / "toy", 8, ORIGIN)
    with pytest.raises(InputError, match="is not a readable image"):
        write_store(make_source(read=reader), tmp_path / "toy", 8, {**ORIGIN, "fingerprint": "2"})
    assert left_over(tmp_path) == ["toy"]
    verify_store(tmp_path / "toy")  # the older store is still whole


def test_all_unreadable_images_are_named_at_once_or_left_out_and_recorded(tmp_path):
    broken = {1: b"", 7: b"not an image", 19: png(19)[:40]}

    def reader(number):
        return lambda: [
            (f"image {i}", broken.get(i, png(i))) for i in range(number * 5, number * 5 + 5)
        ]

    source = make_source(read=reader)
    with pytest.raises(InputError) as caught:
        write_store(source, tmp_path / "toy", 8, ORIGIN)
    first, *listed = str(caught.value).splitlines()
    assert first.startswith("3 of 20 images cannot be read: repair or delete them, or skip them ")
    assert "--skip-unreadable" in first
    assert [line.split(" is not")[0] for line in listed] == ["  image 1", "  image 7", "  image 19"]
    assert left_over(tmp_path) == []

    write_store(source, tmp_path / "toy", 8, ORIGIN, skip_unreadable=True)
    images = open_store(tmp_path / "toy")
    kept = [i for i in range(20) if i not in broken]
    np.testing.assert_array_equal(images.labels, source.labels[kept])
    np.testing.assert_array_equal(images.owners, source.owners[kept])
    np.testing.assert_array_equal(images.is_test, source.is_test[kept])
    for place, number in enumerate(kept):
        np.testing.assert_array_equal(images.images[place], decode(("", png(number)), 8).pixels)
    assert images.notes[1] == (
        "left out 3 images that cannot be read, listed in the store's manifest.json"
    )
    verify_store(tmp_path / "toy")
    unreadable = json.loads((tmp_path / "toy/manifest.json").read_text())["unreadable"]
    assert [line.split(" is not")[0] for line in unreadable] == ["image 1", "image 7", "image 19"]
    assert left_over(tmp_path) == ["toy"]


def test_a_source_without_a_readable_image_is_refused_even_when_skipping(tmp_path):
    source = make_source(1, 2, read=lambda number: lambda: [("a", b"x"), ("b", b"y")])
    with pytest.raises(InputError, match="2 of 2 images cannot be read"):
        write_store(source, tmp_path / "toy", 8, ORIGIN, skip_unreadable=True)


def test_deep_images_are_counted_and_the_count_survives_an_interruption(tmp_path):
    deep = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint16).reshape(8, 8) * 1000).save(deep, "TIFF")
    stop = [True]

    def reader(number):
        def read():
            if number == 3 and stop:
                raise KeyboardInterrupt
            return [("x", deep.getvalue())] * 5

        return read

    with pytest.raises(KeyboardInterrupt):
        write_store(make_source(read=reader), tmp_path / "toy", 8, ORIGIN, window=(0, 65535))
    stop.clear()
    write_store(make_source(read=reader), tmp_path / "toy", 8, ORIGIN, window=(0, 65535))
    images = open_store(tmp_path / "toy")
    assert images.notes[1] == (
        "rescaled 20 grey images of more than 8 bits to 8, from 0 (black) to 65535 (white)"
    )
    assert images.images.max() == round(63_000 / 65535 * 255)


def test_a_new_store_takes_the_place_of_the_old_one(tmp_path):
    write_store(make_source(), tmp_path / "toy", 8, ORIGIN)
    opened = open_store(tmp_path / "toy")
    before = opened.images[0].copy()
    longer = replace(make_source(num_blocks=5), notes=())
    write_store(longer, tmp_path / "toy", 8, {**ORIGIN, "fingerprint": "2"})
    assert len(open_store(tmp_path / "toy").labels) == 25
    np.testing.assert_array_equal(opened.images[0], before)  # a running process keeps its map
    assert left_over(tmp_path) == ["toy"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda f: os.truncate(f / "images.npy", 500), "images.npy cannot be read"),
        (lambda f: (f / "images.npy").unlink(), "images.npy cannot be read"),
        (
            lambda f: np.save(f / "images.npy", np.zeros((20, 3, 8, 9), np.uint8)),
            "images.npy holds",
        ),
        (lambda f: np.save(f / "samples.npy", np.zeros((20, 3), np.int32)), "match its checksum"),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda f: (f / "manifest.json").write_text('{"format": 0}'), "another version"),
    ],
)
def test_a_damaged_store_says_so(tmp_path, damage, reason):
    write_store(make_source(), tmp_path / "toy", 8, ORIGIN)
    damage(tmp_path / "toy")
    with pytest.raises(InputError, match=f"are damaged .*{reason}.*prepare the data set again"):
        open_store(tmp_path / "toy")


def test_one_changed_pixel_fails_verification(tmp_path):
    write_store(make_source(), tmp_path / "toy", 8, ORIGIN)
    pixels = np.lib.format.open_memmap(tmp_path / "toy/images.npy", "r+")
    pixels[3, 1, 2, 2] ^= 1
    pixels.flush()
    with pytest.raises(InputError, match=r"images\.npy does not match its checksum"):
        verify_store(tmp_path / "toy")


def test_no_room_and_no_permission_are_one_sentence(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(store_writer.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(
        InputError, match=r"need 3\.8 kB, but .* has only 1\.0 kB free: choose another data\.store"
    ):
        write_store(make_source(), tmp_path / "toy", 8, ORIGIN)
    assert left_over(tmp_path) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write to"):
        write_store(make_source(), tmp_path / "file/toy", 8, ORIGIN)


def _prepare_in_process(folder, queue):
    started = []
    write_store(make_source(), folder, 8, ORIGIN, lambda *progress: started.append(progress))
    queue.put(bool(started))


def test_two_processes_make_one_store(tmp_path):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    workers = [
        context.Process(target=_prepare_in_process, args=(tmp_path / "toy", queue))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    worked = [queue.get(timeout=60) for _ in workers]
    for worker in workers:
        worker.join()
    assert sorted(worked) == [False, True]  # the second found the first one's store
    verify_store(tmp_path / "toy")
    manifest = json.loads((tmp_path / "toy/manifest.json").read_text())
    assert manifest["notes"] == ["made up"]
