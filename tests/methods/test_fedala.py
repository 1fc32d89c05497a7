"""FedALA: the clipped weights by hand, when the first aggregation ends, and what goes when."""

import pytest
import torch

from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.intake import Intake
from pfedseq.engines.local import LocalClients
from pfedseq.engines.roster import Roster
from pfedseq.methods import METHODS
from pfedseq.methods.fedala import FedALAClient, FedALAConfig, FedALAServer
from pfedseq.params import Params
from pfedseq.runs.checkpoint import restore_server, server_state
from tests.toys import (
    QuadraticTask,
    RecordingTask,
    ScatteredSite,
    ScatteredTask,
    make_setup,
    personal_models,
    random_centers,
)

CENTERS = random_centers(3)
SIZES = (8, 4, 6)


def message(phi: Params) -> dict[str, torch.Tensor]:
    return {"adapter": phi.adapter, "head": phi.head}


def vector(*numbers: float) -> Params:
    """A model whose adapter holds all but the last number."""
    flat = torch.tensor(numbers, dtype=torch.float32)
    return Params(flat[None, :-1], flat[-1:])


def test_weights_are_learned_and_clipped():
    """Two batches from W = (0.5, 0.5, 0.5, 0.9), η_A = 0.1, w_i = 0, so w − w_i = w.

    w = (2, 2, 2, 1), c = (4, −6, 1.5, −7). ŵ = w W; W ← clip(W − 0.1 (ŵ − c) w, 0, 1).
    Batch 1: ŵ = (1, 1, 1, 0.9); (ŵ − c) w = (−6, 14, −1, 7.9);
             W = (1.1 → 1, −0.9 → 0, 0.6, 0.11).
    Batch 2: ŵ = (2, 0, 1.2, 0.11); (ŵ − c) w = (−4, 12, −0.6, 7.11);
             W = (1.4 → 1, −1.2 → 0, 0.66, −0.601 → 0).
    The mixture that is tested and trained from is ŵ = (2, 0, 1.32, 0).
    """
    state = {"model": torch.zeros(4), "weights": torch.tensor([0.5, 0.5, 0.5, 0.9])}
    task = QuadraticTask(vector(4, -6, 1.5, -7), num_batches=2)
    client = FedALAClient(FedALAConfig(weight_lr=0.1), task, state)
    client.receive(message(vector(2, 2, 2, 1)))
    torch.testing.assert_close(state["weights"], torch.tensor([1.0, 0.0, 0.66, 0.0]))
    tested = client.personal(message(vector(9, 9, 9, 9)))
    torch.testing.assert_close(tested.flat(), torch.tensor([2.0, 0.0, 1.32, 0.0]))


def test_the_direction_is_the_difference_to_the_own_model():
    """w_i = (1, 1), w = (3, 0), c = (5, 5), one batch from W = (0.5, 0.5), η_A = 0.1.

    ŵ = (2, 0.5), ŵ − c = (−3, −4.5), w − w_i = (2, −1);
    W = 0.5 − 0.1 · (−6, 4.5) = (1.1 → 1, 0.05).
    """
    state = {"model": torch.ones(2), "weights": torch.full((2,), 0.5)}
    client = FedALAClient(FedALAConfig(weight_lr=0.1), QuadraticTask(vector(5, 5)), state)
    client.receive(message(vector(3, 0)))
    torch.testing.assert_close(state["weights"], torch.tensor([1.0, 0.05]))
    torch.testing.assert_close(state["model"], torch.tensor([3.0, 0.95]))


@pytest.mark.parametrize(("part", "untouched"), [("adapter", 2), ("head", 0)])
def test_outside_its_part_the_global_model_is_taken(part, untouched):
    state = {"model": torch.tensor([0.1, 0.2, 0.3])}
    task = QuadraticTask(vector(0.1, 0.2, 0.3))  # the own model is perfect: W falls
    client = FedALAClient(FedALAConfig(part=part, weight_lr=1.0), task, state)
    client.receive(message(vector(0.7, 0.9, 1.1)))
    mixed, new = state["model"], torch.tensor([0.7, 0.9, 1.1])
    assert mixed[untouched] == new[untouched]
    assert (mixed != new).any()


class PrescribedLosses(QuadraticTask):
    """Answers each question for a loss with the next of a list."""

    def __init__(self, losses):
        super().__init__(CENTERS[0])
        self.losses = iter(losses)

    def loss(self, phi, batch):
        return next(self.losses)


def passes(losses, times: int = 1, **options) -> int:
    """Gradients (one a pass) of the last of `times` aggregations."""
    state = {"model": CENTERS[1].flat()}
    recorder = RecordingTask(PrescribedLosses(losses))
    for _ in range(times):
        recorder.asked.clear()
        FedALAClient(FedALAConfig(**options), recorder, state).receive(message(CENTERS[2]))
    return len(recorder.asked)


def test_the_first_aggregation_goes_on_until_ten_losses_agree():
    """More than ten losses, of which the last ten spread (population σ) by less than the threshold.

    Ten alternating 0 and 2a have σ = a, while their sample deviation would be a · √(10/9).
    """
    assert passes([5.0] * 99) == 11, "never after ten passes alone"
    assert passes([1e6] + [5.0] * 99) == 11, "the first of eleven losses does not count"
    assert passes([5.0] * 4 + [1e6] + [5.0] * 99) == 15, "a jump counts for ten passes"
    assert passes([0.0, 1.98] * 50) == 11
    assert passes([0.0, 2.02] * 50) == 100, "cut off"
    assert passes([0.0, 2.02] * 50, threshold=1.1) == 11
    assert passes([0.0, 9.0] * 50, max_first_passes=7) == 7


def test_later_aggregations_make_one_pass():
    assert passes([5.0] * 11, times=2) == 1
    assert passes([5.0] * 11, times=3) == 1


def test_the_recorded_loss_is_that_of_the_last_batch_before_its_step():
    """Its gradient's ŵ, and its batch: the model and the data of the last forward pass."""
    seen = []

    class Watching(ScatteredTask):
        def loss(self, phi, batch):
            seen.append((phi, batch))
            return super().loss(phi, batch)

    task = RecordingTask(Watching(CENTERS[0], 10))
    client = FedALAClient(FedALAConfig(), task, {"model": CENTERS[1].flat()})
    client.receive(message(CENTERS[2]))
    assert len(seen) == 11
    for n, (phi, batch) in enumerate(seen, start=1):
        assert phi is task.asked[4 * n - 1][0]
        assert batch is task.asked[4 * n - 1][1]


@pytest.mark.parametrize(
    ("share", "sizes"),
    [(0.8, [2, 2, 2, 2]), (0.75, [2, 2, 2, 2]), (0.61, [2, 2, 2, 1]), (0.01, [1])],
)
def test_it_sees_its_share_of_the_training_data(share, sizes):
    client = FedALAClient(FedALAConfig(data_share=share), ScatteredTask(CENTERS[0], 10), {})
    batches = client.sample()
    assert [len(batch) for batch in batches] == sizes
    assert len(set(torch.cat(batches).tolist())) == sum(sizes)


class Droppy(LocalClients):
    """Client 1 does not answer the steps in `lost`, a set of (step, round)."""

    lost: frozenset[tuple[str, int]] = frozenset()

    def call(self, step, t, down):
        if (step, t) in self.lost:
            down = {i: tensors for i, tensors in down.items() if i != 1}
        return super().call(step, t, down)


def federation(**options) -> tuple[FedALAServer, Droppy]:
    method, config = METHODS["fedala"], FedALAConfig(lr=0.1, **options)
    sites = [ScatteredSite(i, c, n) for i, (c, n) in enumerate(zip(CENTERS, SIZES, strict=True))]
    return method.server(config, make_setup(CENTERS, SIZES)), Droppy(method.client, config, sites)


def test_each_global_model_goes_down_once():
    """a + h numbers of 4 bytes a client and round, in `receive`; `train` sends nothing."""
    server, clients = federation()
    for t in (1, 2, 3):
        metered = Intake(Roster(clients, server, FederationConfig()))
        server.run_round(t, metered)
        assert metered.bytes_down == metered.bytes_up == 3 * 4 * CENTERS[0].flat().numel()


def test_training_starts_from_the_model_that_was_tested():
    server, clients = federation()
    for t in (1, 2):
        server.run_round(t, clients)
    tested = personal_models(clients, 2, {0: server.payload(0)})[0]
    assert not torch.equal(tested.adapter, server.adapter), "something personal is in it"
    recorder = RecordingTask(clients.sites[0].task(3, "train"))
    FedALAClient(clients.config, recorder, clients.states.get(0)).train({})
    start = recorder.asked[0][0]
    assert torch.equal(start.adapter, tested.adapter)
    assert torch.equal(start.head, tested.head)
    assert len(recorder.asked) == 4, "one pass: nothing is aggregated again"


def test_who_missed_the_global_model_gets_it_with_the_next_training():
    """Client 1 loses two receipts: its first aggregation is then part of round 2's training."""
    server, clients = federation()
    clients.lost = frozenset({("receive", 1), ("receive", 2)})
    server.run_round(1, clients)
    assert server.informed.tolist() == [True, False, True]
    assert "weights" not in clients.states.get(1)
    server.run_round(2, clients)
    assert "weights" in clients.states.get(1)
    server.run_round(3, clients)
    assert server.informed.all()


def test_a_resumed_server_knows_who_missed_the_global_model():
    server, clients = federation()
    clients.lost = frozenset({("receive", 1)})
    server.run_round(1, clients)
    resumed, _ = federation()
    restore_server(resumed, server_state(server))
    assert resumed.informed.tolist() == [True, False, True]


def test_a_late_client_takes_the_first_model_as_it_is():
    """Client 1 misses all of round 1: its first model is the global one, without aggregation."""
    server, clients = federation()
    clients.lost = frozenset({("train", 1), ("receive", 1)})
    server.run_round(1, clients)
    tested = personal_models(clients, 1, {1: server.payload(1)})[1]
    assert torch.equal(tested.adapter, server.adapter)
    recorder = RecordingTask(clients.sites[1].task(2, "train"))
    FedALAClient(clients.config, recorder, clients.states.get(1)).train(server.payload(1))
    assert torch.equal(recorder.asked[0][0].adapter, server.adapter)
    assert len(recorder.asked) == 2
