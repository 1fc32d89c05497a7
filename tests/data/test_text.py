"""Texts from a CSV file or a folder; what is missing or broken gets one sentence."""

import pytest

from pfedseq.data.config import DataConfig
from pfedseq.data.loading import load_data
from pfedseq.data.preparing import prepare_data
from pfedseq.data.text import load_texts
from pfedseq.errors import InputError

CSV = 'client,label,text\nbob,good,"fine, really"\nanna,bad,Ünwell\nbob,bad,oh no\n'


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return str(path)


def config(source, **options):
    return DataConfig.model_validate({"name": "text", "source": str(source), **options})


def test_a_csv_file(tmp_path):
    wanted = config(write(tmp_path / "notes.csv", CSV))
    assert wanted.partition == "owners"
    texts = load_texts(wanted)
    assert texts.name == "notes"
    assert texts.texts == ("fine, really", "Ünwell", "oh no")
    assert texts.class_names == ("bad", "good")
    assert texts.labels.tolist() == [1, 0, 0]
    assert texts.owner_names == ("anna", "bob")
    assert texts.owners.tolist() == [1, 0, 1]


def test_other_columns(tmp_path):
    path = write(tmp_path / "a.csv", "who,what,stars\nx,hm,3\n")
    named = {"text_column": "what", "label_column": "stars", "owner_column": "who"}
    texts = load_texts(config(path, **named))
    assert (texts.texts, texts.class_names, texts.owner_names) == (("hm",), ("3",), ("x",))
    with pytest.raises(InputError, match=r"no column 'text': its columns are who, what, stars"):
        load_texts(config(path))
    with pytest.raises(InputError, match="no column 'owner'"):
        load_texts(config(path, **(named | {"owner_column": "owner"})))


def test_without_clients_the_texts_are_dealt(tmp_path):
    rows = "".join(f"{'ab'[n % 2]},text {n}\n" for n in range(40))
    path = write(tmp_path / "a.csv", "label,text\n" + rows)
    with pytest.raises(InputError, match=r"does not name the owners of its texts"):
        load_data(config(path), seed=0)
    data = load_data(config(path, partition="iid", num_clients=4), seed=0)
    assert len(data.clients) == 4
    assert data.examples.unit == "text"


def test_a_folder(tmp_path):
    write(tmp_path / "anna" / "bad" / "1.txt", "Ünwell\n")
    write(tmp_path / "bob" / "good" / "1.txt", "fine")
    wanted = config(tmp_path, layout="owner/class")
    assert wanted.partition == "owners"
    texts = load_texts(wanted)
    assert texts.texts == ("Ünwell", "fine")
    assert texts.labels.tolist() == texts.owners.tolist() == [0, 1]
    assert config(tmp_path, layout="class").partition == "dirichlet"
    with pytest.raises(InputError, match=r"1\.txt is 2 folders deep .* 'class' needs 1"):
        load_texts(config(tmp_path, layout="class"))


def test_a_folder_with_a_test_split(tmp_path):
    for split in ("train", "test"):
        write(tmp_path / split / "good" / "1.txt", split)
    texts = load_texts(config(tmp_path, layout="split/class"))
    assert dict(zip(texts.texts, texts.is_test.tolist(), strict=True)) == {
        "test": True,
        "train": False,
    }


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no column 'text'"),
        ("client,label,text\n", "no texts"),
        ("client,label,text\na,b,\n", "line 2 .* not complete"),
        ("client,label,text\na,b\n", "line 2 .* not complete"),
        ("client,label,text\n ,b,c\n", "line 2 .* not complete"),
        ('client,label,text\na,b,"c\n', "not a readable CSV"),
    ],
)
def test_a_broken_file_is_refused(tmp_path, content, said):
    with pytest.raises(InputError, match=said):
        load_texts(config(write(tmp_path / "a.csv", content)))


def test_other_troubles(tmp_path):
    (tmp_path / "latin.csv").write_bytes("client,label,text\na,b,Ünwell".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        load_texts(config(tmp_path / "latin.csv"))
    with pytest.raises(InputError, match=r"neither a \.csv file nor a folder"):
        load_texts(config(tmp_path / "nowhere.csv"))
    write(tmp_path / "texts" / "good" / "1.txt", " \n")
    with pytest.raises(InputError, match="is empty"):
        load_texts(config(tmp_path / "texts"))
    with pytest.raises(InputError, match="no preparation"):
        prepare_data(config(tmp_path / "nowhere.csv"))


def test_the_fingerprint_is_that_of_the_texts(tmp_path):
    first = load_texts(config(write(tmp_path / "a.csv", CSV))).fingerprint
    assert load_texts(config(write(tmp_path / "b.csv", CSV))).fingerprint == first
    other = load_texts(config(write(tmp_path / "c.csv", CSV.replace("oh", "ah"))))
    assert other.fingerprint != first
