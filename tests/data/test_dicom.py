"""DICOM files that pydicom itself writes: windows, photometric interpretations, frames."""

import io

import numpy as np
import pytest

from pfedseq.data import DataConfig, load_data
from pfedseq.data.decode import decode
from pfedseq.errors import InputError

pydicom = pytest.importorskip("pydicom")
SIDE = 16
RAMP = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)


def dicom(values, photometric="MONOCHROME2", bits=None, **tags):
    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.SOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    file.set_pixel_data(values, photometric, bits or 8 * values.dtype.itemsize)
    for name, value in tags.items():
        setattr(file, name, value)
    content = io.BytesIO()
    file.save_as(content, enforce_file_format=True)
    return content.getvalue()


def grey(content, window=None):
    decoded = decode(("scan.dcm", content), SIDE, window)
    assert (decoded.pixels[0] == decoded.pixels[1]).all()
    return decoded.pixels[0].astype(int), decoded


def test_a_ct_is_windowed_in_hounsfield_units():
    """Values 0 … 255 stand for −1024 … −769 HU; the window is [−1000, −900]."""
    tags = {"RescaleSlope": 1, "RescaleIntercept": -1024}
    found, decoded = grey(dicom(RAMP.astype(np.uint16), bits=12, **tags), (-1000.0, -900.0))
    expected = np.rint(255 * np.clip((RAMP - 1024 + 1000) / 100, 0, 1))
    np.testing.assert_array_equal(found, expected)
    assert not decoded.deep, "the scale was chosen"


def test_the_files_own_window_is_used_and_the_configs_wins():
    tags = {"WindowCenter": [100.5, 50.0], "WindowWidth": [101.0, 10.0]}
    found, decoded = grey(dicom(RAMP.astype(np.uint16), **tags))
    np.testing.assert_array_equal(found, np.rint(255 * np.clip((RAMP - 50) / 100, 0, 1)))
    assert not decoded.deep
    found, _ = grey(dicom(RAMP.astype(np.uint16), **tags), (0.0, 255.0))
    np.testing.assert_array_equal(found, RAMP)


def test_without_a_window_deep_values_are_stretched_and_bytes_are_kept():
    found, decoded = grey(dicom((2 * RAMP + 7).astype(np.uint16)))
    np.testing.assert_array_equal(found, RAMP)
    assert decoded.deep
    half = (RAMP // 2).astype(np.uint8)
    found, decoded = grey(dicom(half))
    np.testing.assert_array_equal(found, half)
    assert not decoded.deep


def test_monochrome1_is_turned_over():
    found, _ = grey(dicom(RAMP.astype(np.uint8), "MONOCHROME1"))
    np.testing.assert_array_equal(found, 255 - RAMP)
    found, _ = grey(dicom(RAMP.astype(np.uint16), "MONOCHROME1"), (0.0, 255.0))
    np.testing.assert_array_equal(found, 255 - RAMP)


def test_colours_are_rgb_whatever_the_file_holds():
    rng = np.random.default_rng(0)
    colours = rng.integers(60, 190, (SIDE, SIDE, 3), dtype=np.uint8)
    kept = decode(("", dicom(colours, "RGB")), SIDE).pixels
    np.testing.assert_array_equal(kept, colours.transpose(2, 0, 1))
    ybr = pydicom.pixels.convert_color_space(colours, "RGB", "YBR_FULL")
    turned = decode(("", dicom(ybr, "YBR_FULL")), SIDE).pixels.astype(int)
    assert np.abs(turned - colours.transpose(2, 0, 1)).max() <= 3


def test_of_several_frames_the_first_is_read_and_counted():
    frames = np.stack([RAMP, 255 - RAMP]).astype(np.uint8)
    found, decoded = grey(dicom(frames))
    np.testing.assert_array_equal(found, RAMP)
    assert decoded.paged


def test_a_damaged_file_is_one_sentence():
    whole = dicom(RAMP.astype(np.uint16))
    with pytest.raises(InputError, match=r"scan\.dcm is not a readable image"):
        decode(("scan.dcm", whole[: len(whole) // 2]), SIDE)


def test_a_folder_of_scans_becomes_clients(tmp_path):
    for number in range(24):
        place = tmp_path / "in" / ["a", "b"][number % 2] / ["ill", "well"][number // 12]
        place.mkdir(parents=True, exist_ok=True)
        scan = np.roll(RAMP, number, axis=1).astype(np.uint16)
        (place / f"{number}.dcm").write_bytes(dicom(scan, WindowCenter=128, WindowWidth=256))
    config = DataConfig(
        name="folder",
        source=str(tmp_path / "in"),
        layout="owner/class",
        image_size=SIDE,
        store=tmp_path / "store",
    )
    data = load_data(config, seed=0)
    assert [client.name for client in data.clients] == ["a", "b"]
    assert data.examples.class_names == ("ill", "well")
    assert data.examples.notes == ()
