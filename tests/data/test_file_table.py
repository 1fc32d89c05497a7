"""Tables that list image files: columns, clients, groups and splits."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from data_samples import write_images

from pfedseq.data import DataConfig, load_data
from pfedseq.data.file_table import open_file_table
from pfedseq.data.location import locate
from pfedseq.errors import InputError

COLUMNS = ("file_name", "label", "site", "group", "split")


def some_rows(number=24):
    """Two sites, two classes, six patients a site, each with an image of both classes."""
    return [
        {
            "file_name": f"files/{i:02d}.png",
            "label": ["sick", "well"][i % 2],
            "site": ["north", "south"][i // 12],
            "group": str(i % 12 // 2),
            "split": ["test", "val", "train", "train", "train", "train"][i % 12 // 2],
        }
        for i in range(number)
    ]


def write_table(folder, rows, name="images.csv"):
    write_images(folder, [row["file_name"] for row in rows])
    columns = list(rows[0])
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), folder / name)
    else:
        mark = "\t" if name.endswith(".tsv") else ","
        lines = [mark.join(columns), *(mark.join(row[c] for c in columns) for row in rows)]
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
    return folder / name


def config(table, tmp_path, **values):
    return DataConfig(
        name="table", source=str(table), image_size=8, store=tmp_path / "store", **values
    )


@pytest.mark.parametrize("name", ["images.csv", "images.tsv", "images.parquet"])
def test_sites_groups_and_splits_are_the_tables(name, tmp_path):
    data = load_data(config(write_table(tmp_path, some_rows(), name), tmp_path), seed=0)
    assert data.examples.class_names == ("sick", "well")
    assert [client.name for client in data.clients] == ["north", "south"]
    first = data.clients[0]
    assert first.test.tolist() == [0, 1]
    assert first.validation.tolist() == [2, 3]
    assert first.train.tolist() == list(range(4, 12))


def test_without_splits_patients_stay_whole(tmp_path):
    rows = [{k: v for k, v in row.items() if k != "split"} for row in some_rows()]
    data = load_data(config(write_table(tmp_path, rows), tmp_path), seed=0)
    for client in data.clients:
        patients = [
            set(data.examples.groups[part].tolist())
            for part in (client.train, client.validation, client.test)
        ]
        assert sum(map(len, patients)) == len(set.union(*patients)) == 6
    split_anew = load_data(
        config(write_table(tmp_path, some_rows()), tmp_path, keep_test_split=False), seed=1
    )
    assert len(split_anew.clients[0].test) == 4


def test_other_columns_are_named_in_the_config(tmp_path):
    names = dict(zip(COLUMNS, ("path", "finding", "hospital", "patient", "fold"), strict=True))
    rows = [{names[k]: v for k, v in row.items()} for row in some_rows()]
    write_images(tmp_path, [row["path"] for row in rows])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    chosen = {
        "image_column": "path",
        "label_column": "finding",
        "owner_column": "hospital",
        "group_column": "patient",
    }
    data = load_data(config(tmp_path / "t.parquet", tmp_path, **chosen), seed=0)
    assert data.examples.owner_names == ("north", "south")
    assert data.examples.is_test is None
    assert len(set(data.examples.groups.tolist())) == 12


def test_a_changed_file_is_read_again(tmp_path):
    table = write_table(tmp_path, some_rows())
    before = load_data(config(table, tmp_path), seed=0).examples
    first = before.images[0].copy()
    (tmp_path / "files/00.png").write_bytes((tmp_path / "files/23.png").read_bytes())
    after = load_data(config(table, tmp_path), seed=0).examples
    assert (after.images[0] == before.images[23]).all()
    assert not (after.images[0] == first).all()


def test_what_is_wrong_with_a_table_is_one_sentence(tmp_path):
    table = write_table(tmp_path, some_rows())
    (tmp_path / "files/05.png").unlink()
    with pytest.raises(InputError, match=r"cannot read .*05\.png.*skip-unreadable"):
        load_data(config(table, tmp_path), seed=0)
    kept = load_data(config(table, tmp_path, skip_unreadable=True), seed=0)
    assert len(kept.examples.labels) == 23

    def refused(text, sentence):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(InputError, match=sentence):
            open_file_table(
                config(tmp_path / "bad.csv", tmp_path), locate(str(tmp_path / "bad.csv"))
            )

    refused("file,label\na.png,x\n", "no column 'file_name': its columns are file, label; name one")
    refused("file_name,label,site\na.png,x,\n", "row 1 of .* has no site")
    refused("file_name,label\na.png,x,9\n", "more values than there are columns")
    refused("file_name,label\n", "has no rows")
    (tmp_path / "notes.txt").write_text("file_name,label\n")
    with pytest.raises(InputError, match=r"is not a table: a \.csv"):
        open_file_table(
            config(tmp_path / "notes.txt", tmp_path), locate(str(tmp_path / "notes.txt"))
        )
