"""A run's folder: what may be in it, and what is done about what is damaged."""

import json

import pytest

from pfedseq.config import dump_config, make_config
from pfedseq.engines.rounds import RoundOutcome
from pfedseq.errors import InputError
from pfedseq.runs.folder import RunFolder, client_folders
from pfedseq.runs.records import summarise_round

DATA = {
    "num_images": 3,
    "clients": [
        {"name": name, "train": [i], "validation": [], "test": [2]}
        for i, name in enumerate(("Zoë", "ben"))
    ],
}


def record(method, t, accuracy=0.5):
    """A round in which the second client is below the first."""
    metrics = {
        i: {
            "test_accuracy": accuracy / (i + 1),
            "test_loss": 1.0,
            "test_examples": 4,
            "validation_accuracy": accuracy / (i + 1),
            "validation_loss": 1.0,
            "validation_examples": 40,
        }
        for i in range(2)
    }
    return summarise_round(method, RoundOutcome(t, metrics, 1, 2, 0.1, 0.2, 0.3))


@pytest.fixture
def folder(tmp_path):
    """Two rounds of one method, one of another."""
    made = RunFolder.create(tmp_path / "run", dump_config(make_config({"run": {"rounds": 2}})))
    for entry in (record("local", 1), record("local", 2), record("fedavg", 1)):
        made.append(entry)
    return made


def test_folders_of_clients():
    assert client_folders(["Berlin", "00", "a/b", "..", "Ann", "ann", "2134", "字"]) == [
        "Berlin",
        "client_00",
        "a_b",
        "client_",
        "Ann",
        "ann_2",
        "client_2134",
        "字",
    ]


def test_a_place_that_is_taken_is_refused(tmp_path, monkeypatch):
    RunFolder.check_vacant(tmp_path)
    RunFolder.check_vacant(tmp_path / "new" / "one")
    (tmp_path / "file").write_text("mine")
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match="exists and is not an empty folder"):
            RunFolder.check_vacant(taken)
    with pytest.raises(InputError, match=r"cannot write to .*: .*file is not a folder"):
        RunFolder.check_vacant(tmp_path / "file" / "below")
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(InputError, match="is not a folder one may write to"):
        RunFolder.check_vacant(tmp_path / "new")


def test_a_last_line_that_was_cut_off_is_left_out_and_others_are_not(folder):
    rounds = [(r.method, r.round) for r in folder.records()]
    assert rounds == [("local", 1), ("local", 2), ("fedavg", 1)]
    assert {name: len(r) for name, r in folder.by_method().items()} == {"local": 2, "fedavg": 1}
    text = folder.metrics.read_text()
    folder.metrics.write_text(text + text[:20])
    assert [(r.method, r.round) for r in folder.records()] == rounds
    folder.metrics.write_text(text[:20] + "\n" + text)
    with pytest.raises(InputError, match=r"line 1 of .*metrics\.jsonl is damaged"):
        folder.records()
    assert RunFolder(folder.path / "none").records() == []


def test_only_the_methods_own_rounds_after_the_checkpoint_are_dropped(folder):
    folder.keep_records("fedavg", 0)
    assert [(r.method, r.round) for r in folder.records()] == [("local", 1), ("local", 2)]
    folder.keep_records("local", 1)
    assert [(r.method, r.round) for r in folder.records()] == [("local", 1)]
    with pytest.raises(InputError, match=r"lacks round 2 of local.*checkpoints/local"):
        folder.keep_records("local", 2)
    folder.keep_records("local", 0)
    assert folder.records() == []


def test_the_data_are_written_down_once_and_compared_then(folder):
    assert folder.read_data() is None
    folder.keep_data(DATA)
    text = folder.partition.read_text(encoding="utf-8")
    assert text == json.dumps(DATA, separators=(",", ":"), ensure_ascii=False) + "\n"
    folder.keep_data(DATA)
    other = DATA | {"num_images": 4}
    with pytest.raises(InputError, match=r"not those that .* \(3 images then, 4 now\)"):
        folder.keep_data(other)
    assert folder.read_data() == DATA
    folder.replace_data(other)
    assert folder.read_data() == other
    for damaged in ("{", "[]", '{"num_images": 3}', '{"clients": []}'):
        folder.partition.write_text(damaged)
        with pytest.raises(InputError, match=r"partition\.json is not readable"):
            folder.read_data()


def test_the_summary_is_that_of_the_lines(folder):
    folder.keep_data(DATA)
    folder.append(record("pfedseq", 1, 0.4))
    written = folder.write_summary(epsilon={"method": 2.5})
    assert folder.read_summary() == written
    assert written.clients == ("Zoë", "ben")
    assert written.epsilon == {"method": 2.5}
    assert {name: method.rounds for name, method in written.methods.items()} == {
        "local": 2,
        "fedavg": 1,
        "pfedseq": 1,
    }
    both = ["Zoë", "ben"]
    assert written.harmed == {"pfedseq": {"local": both, "fedavg": both}}
    text = folder.summary.read_text(encoding="utf-8")
    assert text.startswith('{\n  "clients": [\n    "Zoë",\n'), "for people to read"
    folder.partition.unlink()
    assert folder.write_summary().clients == ()
    folder.summary.write_text("{}")
    with pytest.raises(InputError, match=r"summary\.json is not readable .*pfedseq resume"):
        folder.read_summary()


def test_finished_is_what_has_a_summary_and_a_picture(folder):
    assert not folder.finished
    folder.write_summary()
    assert not folder.finished
    folder.curves.touch()
    assert folder.finished


def test_only_the_same_options_go_on(folder):
    """The normalisation that the backbone got is no option that was changed."""
    same = make_config({"run": {"rounds": 2}})
    folder.check_options(same)
    used = same.model.model_copy(update={"mean": (0.5,) * 3, "std": (0.2,) * 3})
    folder.config.write_text(dump_config(same.model_copy(update={"model": used})))
    folder.check_options(same)
    chosen = make_config({"run": {"rounds": 2}, "model": {"std": [0.3, 0.3, 0.3]}})
    with pytest.raises(InputError, match=r"other options \(model\.std was"):
        folder.check_options(chosen)
    with pytest.raises(InputError, match=r"run\.rounds was 2, is 3"):
        folder.check_options(make_config({"run": {"rounds": 3}}))
    RunFolder(folder.path / "none").check_options(same)
