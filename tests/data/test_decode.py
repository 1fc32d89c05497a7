"""Images of more than 8 bits, formats, and what is said of a file that is none."""

import io
import struct

import numpy as np
import pytest
from data_samples import png
from PIL import Image, TiffImagePlugin

from pfedseq.data.decode import decode
from pfedseq.data.file_tree import IMAGE_SUFFIXES
from pfedseq.errors import InputError

RAMP = np.arange(16).reshape(4, 4)
"""Every row of it must end up as a ramp from 0 to 255 again."""
EXPECTED = np.broadcast_to((17 * RAMP).astype(np.uint8), (3, 4, 4))


def encoded(values, format="TIFF", **options):
    out = io.BytesIO()
    Image.fromarray(values).save(out, format, **options)
    return out.getvalue()


def negative(values):
    """A TIFF whose zero means white."""
    return encoded(values, tiffinfo={262: 0})


def unsigned(values):
    """Pillow cannot write unsigned 32-bit integers, so its tag for signed ones is changed."""
    signed = encoded(values.view(np.int32))
    tag = struct.pack("<HHI", 339, 3, 1)
    assert signed.count(tag + b"\2\0") == 1
    return signed.replace(tag + b"\2\0", tag + b"\1\0")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(encoded((1000 + 200 * RAMP).astype(np.uint16), "PNG"), id="16-bit PNG"),
        pytest.param(encoded((1000 + 200 * RAMP).astype(np.uint16)), id="16-bit TIFF"),
        pytest.param(encoded((70_000 * RAMP - 500_000).astype(np.int32)), id="int32 TIFF"),
        pytest.param(encoded((RAMP / 15).astype(np.float32)), id="float TIFF between 0 and 1"),
        pytest.param(encoded((RAMP * 1e4 - 3e4).astype(np.float32)), id="float TIFF, large"),
        pytest.param(negative((273 * (15 - RAMP)).astype(np.uint16)), id="white is zero"),
        pytest.param(unsigned((2e9 + 1e8 * RAMP).astype(np.uint32)), id="uint32 TIFF"),
    ],
)
def test_deep_grey_is_stretched_from_its_darkest_to_its_brightest(content):
    image = decode(("here", content), 4)
    np.testing.assert_array_equal(image.pixels, EXPECTED)
    assert image.deep


def test_a_window_sets_one_scale_for_all_images():
    values = (256 * RAMP).astype(np.uint16)  # 0 to 3840 of a 12-bit scan
    pixels = decode(("here", encoded(values)), 4, (0, 4096)).pixels
    np.testing.assert_array_equal(pixels[0], np.rint(255 * values.astype(float) / 4096))
    clipped = decode(("here", encoded(values)), 4, (1024, 2048)).pixels[0]
    assert clipped.ravel()[:5].tolist() == [0] * 5
    assert clipped.ravel()[8:].tolist() == [255] * 8
    assert clipped.ravel()[6] == 128
    turned = negative((4096 - values).astype(np.uint16))
    np.testing.assert_array_equal(decode(("", turned), 4, (0, 4096)).pixels, pixels)


def test_values_that_are_no_numbers_are_black_and_a_flat_image_is_never_white():
    values = RAMP.astype(np.float32)
    values[3, 3], values[0, 0] = np.nan, -np.inf
    pixels = decode(("here", encoded(values)), 4).pixels[0]
    assert pixels[3, 3] == pixels[0, 0] == 0
    assert pixels[3, 2] == 255
    assert decode(("", encoded(np.full((4, 4), 60_000, np.uint16))), 4).pixels.max() == 0
    with pytest.raises(InputError, match=r"here is not .*\(none of its values is a finite number"):
        decode(("here", encoded(np.full((4, 4), np.nan, np.float32))), 4)


def test_8_bit_images_are_neither_rescaled_nor_counted_as_deep():
    dim = encoded((RAMP + 50).astype(np.uint8), "PNG")
    image = decode(("here", dim), 4, (0, 20))
    np.testing.assert_array_equal(image.pixels[0], RAMP + 50)
    assert not image.deep
    assert not image.paged


def test_a_stack_of_pages_is_told():
    pages = [Image.fromarray((RAMP + n).astype(np.uint8)) for n in range(3)]
    out = io.BytesIO()
    pages[0].save(out, "TIFF", save_all=True, append_images=pages[1:])
    image = decode(("here", out.getvalue()), 4)
    assert image.paged
    np.testing.assert_array_equal(image.pixels[0], RAMP)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "the file is empty"),
        (b"not an image", "Pillow does not recognise its image format"),
        (png()[:60], None),
        (encoded(RAMP.astype(np.uint8))[:30], None),
    ],
    ids=["empty", "text", "cut png", "cut tiff"],
)
def test_a_broken_file_is_a_sentence_without_addresses(content, why):
    with pytest.raises(InputError) as caught:
        decode(("a.png", content), 4)
    sentence = str(caught.value)
    assert sentence.startswith("a.png is not a readable image (")
    assert "0x" not in sentence
    assert why is None or why in sentence


@pytest.mark.parametrize(
    ("suffix", "format"),
    [(".jfif", "JPEG"), (".jpe", "JPEG"), (".ppm", "PPM"), (".avif", "AVIF"), (".heic", "HEIF")],
)
def test_formats_beyond_the_common_ones(suffix, format):
    if format == "HEIF":
        pytest.importorskip("pillow_heif", reason="the heic extra is not installed")
    assert suffix in IMAGE_SUFFIXES
    out = io.BytesIO()
    Image.new("RGB", (16, 16), (200, 40, 40)).save(out, format)
    red, green, blue = decode(("here", out.getvalue()), 8).pixels.mean(axis=(1, 2))
    assert red > 150 > 100 > max(green, blue)


def test_pillow_still_does_not_turn_deep_negatives_over_itself():
    """If this fails, `decode` turns 16-bit images with white as zero over twice."""
    content = encoded(np.array([[0, 4095]], np.uint16), tiffinfo={262: 0})
    with Image.open(io.BytesIO(content)) as image:
        assert isinstance(image, TiffImagePlugin.TiffImageFile)
        assert np.asarray(image).tolist() == [[0, 4095]]
