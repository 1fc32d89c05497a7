"""Texts below the first adapter: computed once, kept on disk, and the same whatever is beside."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pfedseq.cli import app
from pfedseq.config import dump_config, make_config
from pfedseq.errors import InputError
from pfedseq.model.token_store import Prefix
from pfedseq.runs.world import World, fill_tokens
from tests.model.some_models import some_phi
from tests.model.tiny_text_models import write_notes, write_text_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    write_notes(place / "notes.csv")
    write_text_model("roberta", place / "roberta")
    return place


def config_of(folder, store, *more):
    return make_config(
        {
            "run": {"methods": ["fedavg"], "rounds": 1},
            "data": {
                "name": "text",
                "source": str(folder / "notes.csv"),
                "max_tokens": 12,
                "store": str(store),
            },
            "model": {"backbone": str(folder / "roberta")},
            "adapter": {"layers": "last 1"},
            "engine": {"device": "cpu"},
        },
        more,
    )


def refuse(*_):
    raise AssertionError("computed again")


def test_a_second_run_computes_nothing_and_a_longer_text_is_another_store(
    folder, tmp_path, monkeypatch
):
    first = World.build(config_of(folder, tmp_path))
    monkeypatch.setattr(Prefix, "stream", refuse)
    again = World.build(config_of(folder, tmp_path))
    some = first.data.clients[1].train[:5]
    for world in (first, again):
        source = world.sites[0].source
        given, numbers = source.inputs(some), source.tokens[some]
        longest = int((numbers != source.encoder.padding).sum(1).max())
        assert given.shape == (5, longest, 33)
        whole = world.model.prefix(source.numbers(some))[:, :longest]
        torch.testing.assert_close(given, whole)
    with pytest.raises(AssertionError, match="computed again"):
        World.build(config_of(folder, tmp_path, "data.max_tokens=13"))


@pytest.mark.parametrize(("kept", "close"), [("none", 0.0), ("float16", 2e-2)])
def test_however_they_are_kept_features_are_those_of_the_whole_encoder(
    kept, close, folder, tmp_path
):
    exact = World.build(config_of(folder, tmp_path))
    other = World.build(config_of(folder, tmp_path, f"model.tokens={kept}"))
    phi, some = some_phi(exact.model), exact.data.clients[0].test
    one, two = (
        world.model.features(phi.adapter, world.sites[0].source.inputs(some))
        for world in (exact, other)
    )
    torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5 + close)


def test_stacked_clients_get_the_gradients_they_have_alone(folder, tmp_path):
    """Batches of texts of different lengths, by one pass and one by one."""
    world = World.build(config_of(folder, tmp_path))
    tasks = [site.task(1, "train") for site in world.sites]
    phis = [some_phi(world.model, seed) for seed in range(3)]
    batches = [torch.arange(2), torch.arange(5), torch.arange(3)]
    from pfedseq.engines.rendezvous import Question

    asked = [
        Question(task, "grad", (phi, batch, "both"))
        for task, phi, batch in zip(tasks, phis, batches, strict=True)
    ]
    together = tasks[0].answer_together(asked)
    for question, found in zip(asked, together, strict=True):
        alone = question.answer()
        torch.testing.assert_close(found.adapter, alone.adapter, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.head, alone.head, rtol=1e-4, atol=1e-5)


def test_tokens_are_computed_ahead(folder, tmp_path):
    said = []
    layers = fill_tokens(config_of(folder, tmp_path), lambda *what: said.append(what))
    assert layers == 2
    assert said[-1][1:] == (60, 60)
    with pytest.raises(InputError, match="nothing to precompute"):
        fill_tokens(config_of(folder, tmp_path, 'adapter.layers="all"'), print)


def test_tokens_of_texts_are_prepared_by_a_command(folder, tmp_path, monkeypatch):
    (tmp_path / "notes.toml").write_text(dump_config(config_of(folder, tmp_path / "store")))
    arguments = ["data", "prepare", str(tmp_path / "notes.toml"), "--tokens"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "The tokens of 2 frozen layers are ready" in done.output
    monkeypatch.setattr(Prefix, "stream", refuse)
    World.build(config_of(folder, tmp_path / "store"))


def test_sketches_are_means_of_the_words_embeddings(folder, tmp_path):
    """Divided by the deviation of the table; padding counts for nothing."""
    world = World.build(config_of(folder, tmp_path))
    source, some = world.sites[0].source, np.array([0, 7])
    table = source.encoder.model.get_input_embeddings().weight
    for row, index in zip(source.sketches(some), some, strict=True):
        words = [w for w in source.tokens[index] if w != source.encoder.padding]
        torch.testing.assert_close(
            row, torch.stack([table[w] for w in words]).mean(0) / table.std()
        )
