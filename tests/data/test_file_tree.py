import os
import stat
import tarfile
import zipfile

import pytest
from data_samples import copy_zip, truncated, write_images

from pfedseq.data.file_tree import FileTree
from pfedseq.data.location import locate
from pfedseq.errors import InputError

NAMES = ["a/one.png", "a/two.PNG", "b/notes.txt", "b/.hidden.png", "__MACOSX/a/one.png"]


def zipped(folder, archive):
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name in NAMES:
            out.write(folder / name, name)
    return archive


def test_a_folder_and_its_zip_look_the_same(tmp_path):
    folder = write_images(tmp_path / "data", NAMES)
    archive = zipped(folder, tmp_path / "data.zip")
    for tree in (FileTree(folder), FileTree(archive)):
        assert tree.images() == ["a/one.png", "a/two.PNG"]
        assert tree.read("a/two.PNG") == (folder / "a/two.PNG").read_bytes()
        assert "b/notes.txt" in tree
        assert "b/other.txt" not in tree
        with pytest.raises(InputError, match=r"does not contain b/other\.txt"):
            tree.read("b/other.txt")


def test_zips_in_a_folder_are_seen_as_unpacked_there_when_asked(tmp_path):
    folder = write_images(tmp_path / "data", NAMES)
    (tmp_path / "outer").mkdir()
    zipped(folder, tmp_path / "outer/part.zip")
    assert FileTree(tmp_path / "outer").names() == ["part.zip"]
    tree = FileTree(tmp_path / "outer", open_zips=True)
    assert tree.images() == ["a/one.png", "a/two.PNG"]
    assert tree.describe("a/one.png") == f"a/one.png in {tmp_path / 'outer/part.zip'}"


@pytest.mark.parametrize("name", ["../escape.png", "/etc/escape.png", "a/../../x.png", "C:\\x.png"])
def test_names_that_lead_out_of_an_archive_are_refused(tmp_path, name):
    archive = tmp_path / "forged.zip"
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr(name, b"x")
    with pytest.raises(InputError, match="points outside the archive"):
        FileTree(archive)


def test_links_in_an_archive_are_refused(tmp_path):
    archive = tmp_path / "forged.zip"
    link = zipfile.ZipInfo("a/link.png")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(archive, "w") as out:
        out.writestr(link, "/etc/passwd")
    with pytest.raises(InputError, match=r"contains the link a/link\.png"):
        FileTree(archive)


def test_a_loop_of_links_is_a_sentence_and_a_folder_linked_twice_is_read_twice(tmp_path):
    folder = write_images(tmp_path / "data", ["a/one.png"])
    os.symlink(folder / "a", folder / "b")
    assert FileTree(folder).images() == ["a/one.png", "b/one.png"]
    os.symlink(folder, folder / "a/again")
    with pytest.raises(InputError, match=r"data/a/again is a link to its own parent folder"):
        FileTree(folder)
    with pytest.raises(InputError, match="remove the link"):
        locate(str(folder)).fingerprint()


def test_a_link_that_leads_in_a_circle_or_nowhere_is_one_unreadable_file(tmp_path):
    folder = write_images(tmp_path / "data", ["a/one.png"])
    os.symlink("circle.png", folder / "a/circle.png")
    os.symlink("nowhere", folder / "a/broken.txt")
    tree = FileTree(folder)
    assert tree.images() == ["a/circle.png", "a/one.png"]
    with pytest.raises(InputError, match=r"cannot read .*circle\.png: Too many levels of symb"):
        tree.read("a/circle.png")
    assert locate(str(folder)).fingerprint()
    os.symlink("self", tmp_path / "self")
    with pytest.raises(InputError, match=r"there is no file or folder .*self"):
        locate(str(tmp_path / "self"))


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tgz", ".tar.xz"])
def test_a_tar_archive_is_read_like_its_folder(tmp_path, suffix):
    folder = write_images(tmp_path / "data", NAMES)
    archive = tmp_path / f"data{suffix}"
    with tarfile.open(archive, f"w:{ {'.tar': '', '.tar.xz': 'xz'}.get(suffix, 'gz') }") as out:
        out.add(folder, ".")
    tree = FileTree(archive)
    assert tree.images() == FileTree(folder).images()
    assert tree.read("a/two.PNG") == (folder / "a/two.PNG").read_bytes()
    assert tree.read("a/one.png") == (folder / "a/one.png").read_bytes()
    assert tree.describe("a/one.png") == f"a/one.png in {archive}"
    assert "b/notes.txt" in tree
    for share in (0.3, 0.5, 0.6):
        with pytest.raises(InputError, match="is not a complete tar archive"):
            FileTree(truncated(archive, tmp_path / f"cut{suffix}", share))


def test_a_tar_archive_that_leads_out_or_links_is_refused(tmp_path):
    for name, kind, sentence in (
        ("../x.png", tarfile.REGTYPE, "points outside the archive"),
        ("x.png", tarfile.SYMTYPE, r"contains the link x\.png"),
        ("x.png", tarfile.CHRTYPE, r"contains the link x\.png"),
    ):
        member = tarfile.TarInfo(name)
        member.type = kind
        with tarfile.open(tmp_path / "forged.tar", "w") as out:
            out.addfile(member)
        with pytest.raises(InputError, match=sentence):
            FileTree(tmp_path / "forged.tar")


def test_damage_is_named(tmp_path, shared_data):
    sample = shared_data / "tiny-imagenet-200/tiny-imagenet-200-sample.zip"
    with pytest.raises(InputError, match="is not a complete zip archive"):
        FileTree(truncated(sample, tmp_path / "cut.zip"))
    first = zipfile.ZipFile(sample).namelist()[1]
    small = copy_zip(sample, tmp_path / "small.zip", keep=lambda name: name == first)
    content = bytearray(small.read_bytes())
    content[200:210] = b"0123456789"
    small.write_bytes(content)
    with pytest.raises(InputError, match=rf"{first} in .* is damaged .*CRC"):
        FileTree(small).read(first)
    with pytest.raises(InputError, match="there is no file or folder"):
        FileTree(tmp_path / "nowhere")
