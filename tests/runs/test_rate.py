"""`training.lr = "auto"`: a range test before round 1 finds the rate."""

import math
import tomllib
from dataclasses import replace
from math import inf

import pytest
import torch

from pfedseq.config import dump_config, load_config, make_config
from pfedseq.deployment.server import serve
from pfedseq.errors import InputError
from pfedseq.params import Params
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.rate import (
    MOST_EXAMPLES,
    MOST_RATES,
    STEPS,
    best_rate,
    loss_after,
    range_test,
    with_rate,
)
from pfedseq.runs.run import run
from pfedseq.runs.sweep import methods_by_seeds, sweep
from pfedseq.runs.world import World
from pfedseq.training.config import Units
from tests.toys import QuadraticTask

SMALL = {
    "run": {"rounds": 2, "methods": ["local", "fedavg"]},
    "data": {"name": "digits", "num_clients": 2, "image_size": 32, "max_images_per_client": 30},
    "training": {"lr": "auto"},
}

ADAMW = {**SMALL, "training": {"lr": "auto", "optimizer": "adamw"}}


def scores_of(path):
    return {name: one.scores for name, one in RunFolder(path).read_summary().methods.items()}


class Site:
    """The site of a quadratic client, whose task is the same in every round."""

    def __init__(self, task):
        self.made = task

    def task(self, t, step):
        return self.made


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (4.0, [1.0, 2.0, 4.0, 8.0]),  # from 1 up, as long as it helps
        (1.0, [0.5, 1.0, 2.0]),
        (0.25, [0.125, 0.25, 0.5, 1.0, 2.0]),
    ],
)
def test_the_lowest_loss_is_looked_for_in_steps_of_two(best, tried):
    found = range_test(lambda lr: abs(math.log2(lr / best)), 1.0, untrained=10.0)
    assert sorted(found) == tried
    assert best_rate(found) == best


def test_a_rate_that_is_far_too_high_is_left_downwards():
    """From 16 the losses fall upwards too, but all are above the untrained model's."""
    losses = {16.0: 30.0, 8.0: 40.0, 4.0: inf, 2.0: 5.0, 1.0: 1.0, 0.5: 0.5, 0.25: 0.7}
    found = range_test(losses.__getitem__, 16.0, untrained=2.0)
    assert found == losses
    assert best_rate(found) == 0.5


def test_a_rate_that_leaves_the_untrained_models_loss_is_too_high():
    """From 2, where the loss is still that of the untrained model; 4 is not tried."""
    losses = {2.0: 5.0, 1.0: 1.0, 0.5: 2.0}
    assert range_test(losses.__getitem__, 2.0, untrained=5.0) == losses


def test_no_rate_is_tried_that_would_be_refused():
    """With AdamW 0.1 is the highest rate, of adapters and of heads."""
    tried = range_test(lambda lr: -lr, 1.0, 2.0, highest=4.0)
    assert sorted(tried) == [1.0, 2.0, 4.0]
    for options, most in [([], 0.1), (["training.head_lr=0.004"], 0.05)]:
        training = make_config(ADAMW, options).training
        tried = range_test(lambda lr: -lr, training.lr, 2.0, training.highest_lr)
        assert most / 2 < max(tried) <= most
        make_config(tomllib.loads(dump_config(make_config(ADAMW, options).at_rate(max(tried)))))
    assert make_config(SMALL).training.highest_lr == inf


def test_the_search_ends():
    assert len(range_test(lambda lr: inf, 1.0, 2.0)) == MOST_RATES
    assert len(range_test(lambda lr: -lr, 1.0, 2.0)) == MOST_RATES
    assert best_rate({1.0: 0.5, 0.5: 0.5}) == 0.5


def test_the_loss_is_that_after_as_many_steps_of_plain_descent():
    """½ ‖φ − c‖² shrinks by (1 − η)² a step; adapter and head at rates of their own."""
    center = Params(torch.full((1, 4), 2.0), torch.full((3,), 1.0))
    training = make_config({"training": {"lr": 0.02, "head_lr": 0.01, "max_step": 0}}).training
    expected = 0.5 * (16 * 0.98 ** (2 * STEPS) + 3 * 0.99 ** (2 * STEPS))
    for num_batches in (1, 5, 50):
        site = Site(QuadraticTask(center, 7, num_batches))
        assert loss_after([site, site], training) == pytest.approx(expected, rel=1e-4)
    warm = training.model_copy(update={"schedule_warmup": 5})
    assert loss_after([site], warm) == pytest.approx(expected, rel=1e-4), "at the full rate"
    assert loss_after([site], training.at_rate(1e30)) == inf
    assert loss_after([site], training, steps=0) == pytest.approx(0.5 * (16 + 3))
    site.made.units = Units(adapter=2.0, feature=5.0, classes=4)
    expected = 0.5 * (16 * 0.995 ** (2 * STEPS) + 3 * 0.9992 ** (2 * STEPS))
    assert loss_after([site], training) == pytest.approx(expected, rel=1e-4)


class Counting(QuadraticTask):
    """Numbered examples, a loss that names the first one of its batch, and a note of all asked."""

    def __init__(self, num_examples):
        super().__init__(Params(torch.ones(1, 4), torch.ones(3)), num_examples)
        self.trained, self.measured = [], []

    def batches(self, epochs):
        for _ in range(epochs):
            yield from torch.arange(self.num_examples).split(30)

    def grad(self, phi, batch, part="both"):
        self.trained.append(batch.tolist())
        return super().grad(phi, batch, part)

    def loss(self, phi, batch):
        self.measured.append(batch.tolist())
        return float(batch[0])


def test_a_quarter_is_kept_aside_and_the_loss_is_measured_on_it():
    """80 examples: 20 aside, and 60 that are trained on in turn, in batches of 30."""
    task = Counting(80)
    assert loss_after([Site(task)], make_config(SMALL).training, steps=3) == 0
    first, second = list(range(20, 50)), list(range(50, 80))
    assert task.trained == [first, second, first]
    assert task.measured == [list(range(20))]


def test_the_loss_is_measured_in_batches_of_as_many_examples_as_are_wanted():
    """No pass is larger than in training: memory may not suffice for it."""
    task = Counting(400)
    expected = (30 * 0 + 30 * 30 + 4 * 60) / MOST_EXAMPLES
    assert loss_after([Site(task)], make_config(SMALL).training, steps=1) == expected
    assert [len(batch) for batch in task.measured] == [30, 30, 4]
    assert task.trained == [list(range(MOST_EXAMPLES, MOST_EXAMPLES + 30))]


@pytest.mark.parametrize(("num_examples", "trained"), [(1, [0]), (2, [1]), (3, [1, 2])])
def test_few_examples_are_divided_too(num_examples, trained):
    task = Counting(num_examples)
    loss_after([Site(task)], make_config(SMALL).training, steps=1)
    assert (task.trained, task.measured) == ([trained], [[0]])


def test_a_run_finds_its_rate_says_and_records_it_and_continues_with_it(tmp_path):
    config = make_config(SMALL)
    assert config.training.rate_test == "wanted"
    said = []
    run(config, tmp_path / "run", tell=said.append)
    (number,) = [n for n, s in enumerate(said) if s.startswith("training.lr")]
    assert said[number - 1] == "testing learning rates: 32 steps of 2 clients at each"
    sentence = said[number]
    written = load_config(tmp_path / "run" / "config.toml")
    found = written.training.lr
    assert sentence.startswith(f"training.lr = auto: {found:g} has the lowest mean loss on")
    assert written.training.rate_test == "done"
    assert written.training.head_ratio == pytest.approx(config.training.head_ratio)
    assert {written.method_config(name).lr for name in ("local", "fedavg")} == {found}
    # The same numbers as with that rate given, and nothing is tested again.
    given = make_config(SMALL, [f"training.lr={found}", f"training.head_lr={found}"])
    run(given, tmp_path / "given")
    assert scores_of(tmp_path / "run") == scores_of(tmp_path / "given")


def test_an_interrupted_run_keeps_the_rate_it_found(tmp_path, monkeypatch):
    config = make_config(SMALL)

    def stop(record):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "run", listener=stop)
    monkeypatch.setattr("pfedseq.runs.rate.range_test", lambda *_: pytest.fail("tested again"))
    run(config, tmp_path / "run")
    other = make_config(SMALL, ["run.rounds=3"])
    with pytest.raises(InputError, match=r"other options"):
        run(other, tmp_path / "run")


def test_methods_of_a_sweep_share_one_test(tmp_path):
    said = []
    entries = methods_by_seeds(make_config(SMALL), ["local", "fedavg"], [0])
    sweep(entries, tmp_path, tell=said.append)
    assert len([s for s in said if s.startswith("training.lr")]) == 1
    rates = {load_config(tmp_path / e.label / "config.toml").training.lr for e in entries}
    assert len(rates) == 1
    sweep(entries, tmp_path)  # finished runs are those that were asked for


@pytest.mark.parametrize(
    ("config", "untrained", "tried"),
    [
        (SMALL, 8.0, [2.0, 4.0, 8.0, 16.0]),
        (SMALL, 0.0, [2.0 / 2**n for n in range(MOST_RATES)]),
        (ADAMW, 1000.0, [0.002, 0.004, 0.008, 0.016, 0.032, 0.064]),
    ],
)
def test_what_is_tried_starts_at_the_configs_rate(monkeypatch, config, untrained, tried):
    """Higher rates give lower losses, SGD's up to 8; AdamW's end at what is accepted."""
    asked = []

    def loss(sites, training, steps=STEPS):
        asked.append(training.lr if steps else None)
        return 1 / training.lr + (training.lr > 8) if steps else untrained

    monkeypatch.setattr("pfedseq.runs.rate.loss_after", loss)
    world = World.build(make_config(config))
    found = with_rate(world, world.config, lambda _: None)
    assert asked == [None, *tried]
    assert found.training.lr == (max(tried) if config is ADAMW else tried[-2] if untrained else 2)
    assert found.training.head_lr == found.training.lr


def test_clients_without_training_examples_take_no_part(monkeypatch):
    world, asked = World.build(make_config(SMALL)), []

    def loss(sites, training, steps=STEPS):
        asked.append([site.client for site in sites])
        return 1.0

    monkeypatch.setattr("pfedseq.runs.rate.loss_after", loss)
    monkeypatch.setattr("pfedseq.runs.rate.MOST_CLIENTS", 2)
    site = world.sites[0]
    empty = replace(site, data=replace(site.data, train=site.data.train[:0]))
    sites = tuple(replace(site, client=i) for i in range(2, 5))
    with_rate(replace(world, sites=(empty, *sites)), world.config, lambda _: None)
    assert {tuple(who) for who in asked} == {(2, 3)}
    nobody = replace(world, sites=(empty,), rates={})
    with pytest.raises(InputError, match="no client has any"):
        with_rate(nobody, world.config, lambda _: None)


def test_rates_are_tested_with_as_many_threads_as_clients_train_with(monkeypatch):
    """Sums, and so the rate that is found, would otherwise depend on the machine."""
    asked = []

    def loss(*_, **steps):
        asked.append(torch.get_num_threads())
        return 1.0

    monkeypatch.setattr("pfedseq.runs.rate.loss_after", loss)
    world, before = World.build(make_config(SMALL)), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with_rate(world, world.config, lambda _: None)
    finally:
        torch.set_num_threads(before)
    assert {*asked} == {1}


def test_a_method_with_a_rate_of_its_own_needs_no_test(tmp_path):
    config = make_config(SMALL, ["run.methods=['local']", "methods.local.lr=0.5"])
    said = []
    run(config, tmp_path / "run", tell=said.append)
    assert not [s for s in said if s.startswith("training.lr")]


def test_a_method_with_an_optimizer_of_its_own_has_its_own_rate():
    options = ["methods.local.optimizer=adamw", "run.methods=['local', 'fedavg']"]
    config = make_config(SMALL, options)
    assert config.wants_rate
    found = config.at_rate(8.0)
    rates = [found.method_config(name).lr for name in ("local", "fedavg")]
    assert rates == [2e-3, 8.0]
    assert not make_config(SMALL, [*options, "run.methods=['local']"]).wants_rate


def test_a_test_starts_at_the_configs_rate_and_keeps_the_heads_ratio_to_it():
    given, auto = (load_config("lab/pacs", options) for options in ([], ["training.lr=auto"]))
    assert (given.training.rate_test, auto.training.rate_test) == ("off", "wanted")
    assert auto.training.lr == given.training.lr
    assert auto.at_rate(1.0).training.head_lr == pytest.approx(given.training.head_ratio)
    by_file = {"training": {"lr": "auto", "head_lr": 0.5}}
    assert make_config(by_file).training.lr == make_config({}).training.lr
    assert make_config(by_file, ["training.lr=auto"]) == make_config(by_file)
    found = tomllib.loads(dump_config(auto.at_rate(0.4)))
    assert make_config(found).training.rate_test == "done"
    assert make_config(found, ["training.lr=0.3"]).training.rate_test == "off"
    assert make_config(found, ["training.lr=auto"]).training.rate_test == "wanted"


def test_adamws_rates_start_at_its_own_default():
    config = make_config(ADAMW)
    assert (config.training.lr, config.training.rate_test) == (2e-3, "wanted")


def test_only_the_training_section_can_be_automatic():
    with pytest.raises(InputError, match=r"methods.local.lr"):
        make_config(SMALL, ["methods.local.lr=auto"])
    with pytest.raises(InputError, match=r"training.lr = 'fast'"):
        make_config(SMALL, ["training.lr=fast"])


def test_a_guarantee_of_privacy_does_not_cover_it():
    with pytest.raises(InputError, match=r"training.lr = 'auto' .* without noise"):
        make_config(SMALL, ["privacy.noise=1.0"])
    make_config(SMALL, ["privacy.noise=1.0", "run.methods=['local']", "methods.local.lr=0.5"])
    found = make_config(SMALL).at_rate(0.5)
    make_config(tomllib.loads(dump_config(found)), ["privacy.noise=1.0"])  # a number by now


def test_a_federation_refuses_it(tmp_path):
    (tmp_path / "config.toml").write_text('[training]\nlr = "auto"\n')
    with pytest.raises(InputError, match="set a number"):
        serve(None, tmp_path / "out", tmp_path / "config.toml", lambda _: None)
