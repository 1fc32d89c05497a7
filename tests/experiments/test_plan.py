"""What a plan says, against what a run then does."""

from dataclasses import replace

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.experiments import plan as planning
from pfedseq.learners.history import History
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.run import run
from pfedseq.runs.world import World

CONFIG = {
    "run": {"rounds": 4, "methods": ["pfedseq", "fedavg"], "evaluate_every": 3},
    "data": {"name": "digits", "partition": "dirichlet", "alpha": 1.0, "num_clients": 3},
    "training": {"lr": 0.02, "batch_size": 8},
    "methods": {"pfedseq": {"warmup_rounds": 1, "max_sequence_length": 3}},
}


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """A plan, and the run that was planned."""
    config = make_config(CONFIG, ["data.max_images_per_client=40"])
    heard = []
    found = planning.plan(
        World.build(config), config.run.methods, lambda *words: heard.append(words)
    )
    assert heard[-1] == ("measuring", 2, 2)
    out = tmp_path_factory.mktemp("plan") / "run"
    return found, run(config, out), RunFolder(out)


def test_what_can_be_counted_is_exact(both):
    found, summary, folder = both
    for row in found.methods:
        cost = summary.methods[row.method].cost
        assert (row.bytes_up, row.bytes_down) == (cost.bytes_up, cost.bytes_down)
    clients = folder.read_data()["clients"]
    assert found.training_examples == sum(len(client["train"]) for client in clients)
    assert found.evaluated_examples == sum(len(c["test"]) + len(c["validation"]) for c in clients)
    assert found.evaluations == len([r for r in folder.by_method()["fedavg"] if r.scores]) == 2


def test_disk_is_nearly_what_is_written(both):
    """Checkpoints and models are tensors but for their names."""
    found, _, folder = both
    for row in found.methods:
        written = sum(
            path.stat().st_size
            for place in (folder.path / "checkpoints", folder.path / "adapters")
            for path in (place / row.method).rglob("*.safetensors")
        )
        assert row.disk == pytest.approx(written, rel=0.15)


def test_disk_under_partial_participation(tmp_path):
    """Half of the clients in a round: L = 3 holds one whole round and two of four clients.

    Over four rounds a client stays away with probability 1/16.
    """
    options = ["data.num_clients=8", "data.max_images_per_client=20", "data.partition=iid"]
    options += ["federation.participation=0.5", "run.methods=['pfedseq']"]
    config = make_config(CONFIG, options)
    world = World.build(config)
    (row,) = planning.plan(world, ["pfedseq"], lambda *_: None).methods
    run(config, tmp_path / "run")
    written = [path.stat().st_size for path in (tmp_path / "run").rglob("*.safetensors")]
    assert row.disk == pytest.approx(sum(written), rel=0.1)


def test_a_client_that_never_takes_part_has_no_state():
    """Of three with 4 bytes, 12 bytes and none yet, each comes with probability 1 − 0.5² in two."""
    states = [{"a": torch.zeros(1)}, {"a": torch.zeros(3)}, {}]
    assert planning._clients_memory(states, 0.5, 2) == 3 * 8 * 0.75
    assert planning._clients_memory(states[:2], 1.0, 2) == 16
    assert planning._clients_memory([{}, {}], 0.5, 2) == 0


def test_very_many_clients_are_measured_on_one_batch_each(monkeypatch):
    """Six clients where only one would be as usual: 4 batches and 128 examples in all."""
    config = make_config(CONFIG, ["data.num_clients=6", "data.partition=iid"])
    world = World.build(config)
    monkeypatch.setattr(planning, "MEASURED_CLIENTS", 1)
    small = planning._reduced(world)
    assert [len(site.data.train) for site in small.sites] == [8] * 6
    tested = planning._num_evaluated(small)
    assert 128 <= tested < 128 + 2 * 6  # rounded up for each client's two splits
    assert planning._num_evaluated(world) > 400


@pytest.mark.parametrize("per_round", [None, 100, 16])
def test_time_grows_with_rounds_and_examples(monkeypatch, per_round):
    """With a clock that only counts examples: 2 s for each trained one, 1 s for each tested.

    The last evaluation, which scores the mean of all, too, takes twice as long.
    """
    seen = []

    def count(server, clients, rounds, after_round, every, conditions):
        sites = clients.sites
        for t in rounds:
            train = sum(len(site.drawn(t)) for site in sites)
            test = sum(len(site.data.test) + len(site.data.validation) for site in sites)
            seen.append(train)
            testing = float(test) * (2 if t == 20 else 1)
            seconds = 2.0 * train + 0.5 + testing
            after_round(planning.RoundOutcome(t, {}, 0, 0, 0.0, 0.5, testing, seconds))

    monkeypatch.setattr(planning, "run_rounds", count)
    drawn = [] if per_round is None else [f"training.examples_per_round={per_round}"]
    config = make_config(CONFIG, ["run.methods=['fedavg']", "run.rounds=20", *drawn])
    world = World.build(config)
    found = planning.plan(world, ["fedavg"], lambda *_: None)
    (row,) = found.methods
    trained = sum(min(len(c.train), per_round or 9999) for c in world.data.clients)
    assert found.training_examples == trained
    if per_round == 16:
        assert set(seen) == {48}, "so short a round is measured whole"
    else:
        assert max(seen) < trained / 2, "only a few were measured"
    assert row.training_seconds == pytest.approx(20 * 2 * trained)
    assert row.server_seconds == pytest.approx(20 * 0.5)
    assert row.evaluate_seconds == pytest.approx((7 + 1) * found.evaluated_examples)
    assert row.saving_seconds > 0
    assert replace(found, startup_seconds=5.0).seconds == pytest.approx(row.seconds + 5)


@pytest.mark.parametrize(("rounds", "expected"), [(1, 10), (2, 20 + 10), (3, 30 + 20 + 20)])
def test_the_last_evaluation_is_that_of_the_last_round(rounds, expected):
    """Round t takes 10 t s: of three, two are as the second; of two, one is as the first."""
    outcomes = [planning.RoundOutcome(t, {}, 0, 0, 0.0, 0.0, 10.0 * t, 0.0) for t in (1, 2, 3)]
    assert planning._evaluate_seconds(outcomes, rounds, every=1) == pytest.approx(expected)


def test_the_end_of_the_warm_up_is_a_step_and_no_growth(monkeypatch):
    """A clock that counts windows: 1 s for each update that is trained on, 4 s for each read later.

    L = 3, W = 4, T = 8: trained on 0, 1, 2, 3, 3, 3, 3, 3; from round 5 on, three are read.
    """

    def count(server, clients, rounds, after_round, every, conditions):
        history = getattr(server, "history", History(3))  # Local, which is run to warm up, has none
        for t in rounds:
            seconds = len(history) + 4.0 * min(t, 3) * (t > 4)
            history.append(torch.zeros(3, *server.setup.initial.adapter.shape))
            after_round(planning.RoundOutcome(t, {}, 0, 0, 0.0, seconds, 0.0, seconds))

    monkeypatch.setattr(planning, "run_rounds", count)
    config = make_config(CONFIG, ["run.rounds=8", "methods.pfedseq.warmup_rounds=4"])
    (row,) = planning.plan(World.build(config), ["pfedseq"], lambda *_: None).methods
    assert row.server_seconds == pytest.approx((0 + 1 + 2 + 5 * 3) + 4 * 4 * 3)


def test_a_growing_window_is_followed_until_it_is_full():
    """Nothing to look back on in round 1; then 1 s for a window of one, 3 s for the full three."""
    assert planning._growing_seconds(0.5, 1.0, 3.0, 3, 6) == pytest.approx(0.5 + 1 + 2 + 3 + 3 + 3)
    assert planning._growing_seconds(0.5, 1.0, 1.0, 1, 4) == pytest.approx(3.5)
    assert planning._growing_seconds(0.5, 1.0, 3.0, 3, 1) == pytest.approx(0.5)


def test_a_pooled_learner_is_planned_as_it_is():
    """Of each client four sums, an adapter, a heading and an offset; the form is said."""
    options = ["run.methods=['pfedseq']", "methods.pfedseq.mixing=pooled"]
    config = make_config(CONFIG, [*options, "data.max_images_per_client=40"])
    world = World.build(config)
    (row,) = planning.plan(world, ["pfedseq"], lambda *words: None).methods
    adapter = world.model.initial.adapter
    of_clients = 3 * 7 * adapter.numel() * adapter.element_size()
    assert of_clients < row.server_memory < 1.5 * of_clients
    (note,) = row.notes
    assert note.startswith('mixing = "pooled" for 3 clients')
    assert row.server_seconds > 0
