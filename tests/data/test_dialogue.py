"""Dialogues out of files: every format, every client, every refusal."""

import json

import numpy as np
import pytest

from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import Dialogue, Turn
from pfedseq.data.dialogue import load_dialogues
from pfedseq.data.lab_notes import NOTATIONS, NOTES_PER_CLIENT, lab_notes
from pfedseq.data.loading import load_data
from pfedseq.errors import InputError


def config(source, **options):
    return DataConfig.model_validate({"name": "dialogue", "source": str(source), **options})


def load(source):
    return load_dialogues(config(source))


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def message(role, content):
    return {"role": role, "content": content}


def test_a_file_or_a_folder_for_each_client(tmp_path):
    write(tmp_path / "bob.jsonl", {"prompt": "soup", "answer": "salt"})
    write(tmp_path / "anna" / "one.jsonl", {"text": "bread"})
    write(tmp_path / "anna" / "more" / "two.jsonl", {"prompt": "a", "answer": "b"})
    (tmp_path / "chen.txt").write_text("first line\nsecond line\n\n  \n\nnext paragraph\n")
    (tmp_path / "notes.md").write_text("not read")
    found = load(tmp_path)
    assert found.owner_names == ("anna", "bob", "chen")
    by_client = {
        name: {d for d, owner in zip(found.dialogues, found.owners, strict=True) if owner == i}
        for i, name in enumerate(found.owner_names)
    }
    assert by_client == {
        "anna": {Dialogue((), "bread"), Dialogue((Turn("user", "a"),), "b")},
        "bob": {Dialogue((Turn("user", "soup"),), "salt")},
        "chen": {Dialogue((), "first line\nsecond line"), Dialogue((), "next paragraph")},
    }
    assert (found.unit, found.class_names, found.is_test) == ("dialogue", (), None)


def test_rows_may_name_their_client_and_split(tmp_path):
    rows = [
        {"prompt": f"p{i}", "answer": "a", "client": "xy"[i % 2], "split": split}
        for i, split in enumerate(["train", "test", "valid", "train"])
    ]
    found = load(write(tmp_path / "all.jsonl", *rows))
    assert found.owner_names == ("x", "y")
    assert found.owners.tolist() == [0, 1, 0, 1]
    assert found.is_test.tolist() == [False, True, False, False]
    assert found.is_validation.tolist() == [False, False, True, False]


def test_every_answer_of_a_conversation_is_learnt_on_one_side_of_a_split(tmp_path):
    talk = [
        message("system", "be kind"),
        message("user", "hi"),
        message("assistant", "hello"),
        message("user", "bye"),
        message("assistant", "goodbye"),
    ]
    rows = [{"messages": talk}, {"prompt": "p", "answer": "a"}]
    found = load(write(tmp_path / "c" / "talk.jsonl", *rows))
    turns = tuple(Turn(**one) for one in talk)
    assert found.dialogues[:2] == (
        Dialogue(turns[:2], "hello"),
        Dialogue(turns[:4], "goodbye"),
    )
    assert found.groups[0] == found.groups[1] != found.groups[2]


def test_clients_are_split_and_copies_stay_together(tmp_path):
    for client in "ab":
        rows = [{"prompt": f"{client}{i}", "answer": "x"} for i in range(8)]
        write(tmp_path / f"{client}.jsonl", *rows, *rows)
    data = load_data(config(tmp_path), seed=0)
    assert [client.name for client in data.clients] == ["a", "b"]
    for client in data.clients:
        sides = [
            {data.examples.dialogues[i] for i in part}
            for part in (client.train, client.validation, client.test)
        ]
        assert all(sides)
        assert not sides[0] & sides[2]
        assert sum(map(len, sides)) == 8


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("[1]", "is not a JSON object"),
        ("{", "is not JSON"),
        ('{"question": "x"}', r"has the keys question: each line is \{\"prompt\""),
        ('{"prompt": "x", "answer": " "}', "the answer in line 2 .* non-empty text, not ' '"),
        ('{"prompt": 3, "answer": "x"}', "the prompt in line 2 .* not 3"),
        ('{"text": null}', "the text in line 2"),
        ('{"messages": "x"}', "are not a list of objects"),
        ('{"messages": [{"role": "me", "content": "x"}]}', "the role 'me': it must be one of"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "the assistant never answers"),
    ],
)
def test_rows_that_are_no_dialogue_are_refused_by_their_line(tmp_path, row, said):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "fine"}\n' + row + "\n")
    with pytest.raises(InputError, match=said) as refused:
        load(tmp_path)
    assert f"line 2 of {path}" in str(refused.value)


def test_sources_without_dialogues_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"neither a \.jsonl file nor a folder"):
        load(tmp_path / "none")
    with pytest.raises(InputError, match="contains no dialogues"):
        load(tmp_path)
    with pytest.raises(InputError, match="some rows of all name a `client`"):
        load(write(tmp_path / "all.jsonl", {"text": "a", "client": "x"}, {"text": "b"}))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not readable as UTF-8"):
        load(tmp_path)
    with pytest.raises(ValueError, match="'dialogue' needs source: a folder"):
        DataConfig.model_validate({"name": "dialogue"})


def test_a_changed_dialogue_changes_the_fingerprint(tmp_path):
    path = write(tmp_path / "a.jsonl", {"prompt": "p", "answer": "a"})
    first = load(path).fingerprint
    write(path, {"prompt": "p", "answer": "b"})
    assert load(path).fingerprint != first


def test_lab_notes_are_written_in_each_clients_notation():
    found = lab_notes()
    assert found.owner_names == tuple(NOTATIONS)
    assert np.bincount(found.owners).tolist() == [NOTES_PER_CLIENT] * len(NOTATIONS)
    assert found.fingerprint == lab_notes().fingerprint
    for dialogue, owner in zip(found.dialogues, found.owners, strict=True):
        (asked,) = dialogue.turns
        name, _, value = asked.content.rpartition(" ")
        assert dialogue.answer == NOTATIONS[found.owner_names[owner]](name, value)
    prompts = [dialogue.turns[0].content for dialogue in found.dialogues]
    assert len(set(prompts)) == len(prompts), "no client measures what another has"
    assert len({notation("ash", "2.5") for notation in NOTATIONS.values()}) == len(NOTATIONS)
