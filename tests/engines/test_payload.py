"""Rounded messages: what is lost comes later, the bytes are exact, and no engine differs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfedseq import make_config
from pfedseq.engines import wire
from pfedseq.engines.local import LocalClients
from pfedseq.engines.payload import bases, pack, take_residuals, unpack
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.states import MemoryStates
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import Client, MethodConfig, Reply
from pfedseq.methods import METHODS
from pfedseq.params import Params
from tests.every_method import OPTIONS, every_method
from tests.toys import make_setup, quadratic_federation, random_centers

CENTERS, SIZES, ROUNDS = random_centers(3, adapter_dim=10), (4, 2, 3), 3
STEP = {"float16": 2**-11, "int8": 1 / 127}
"""Between neighbouring codes, for a row whose largest number is 1; of float16's, near that."""
both = pytest.mark.parametrize("precision", ["float16", "int8"])


def exchange(tensor, precision, residuals, base=None):
    """What arrives of a tensor, and what is still owed."""
    known = {} if base is None else {"x": base}
    packed, residuals = pack("train", {"x": tensor}, known, precision, residuals)
    return unpack(packed, known)["x"], residuals


@both
def test_what_arrives_in_all_is_what_was_meant_to_within_half_a_step(precision):
    """Σ Q(u + e) = Σ u − e, and |e| is at most half a step of the last row."""
    rng = torch.Generator().manual_seed(0)
    residuals = {}
    true, arrived = torch.zeros(3, 40), torch.zeros(3, 40)
    for _ in range(50):
        update = torch.randn(3, 40, generator=rng) * torch.tensor([[1e-6], [1.0], [1e6]])
        got, residuals = exchange(update, precision, residuals)
        owed = residuals["residual:train:x"]
        row = (got + owed).abs().amax(-1, keepdim=True)
        assert (owed.abs() <= 0.501 * STEP[precision] * row).all()
        true, arrived = true + update, arrived + got
        rounding = 1e-5 * true.abs().amax(-1, keepdim=True)
        assert ((true - arrived - owed).abs() <= rounding).all()
    assert owed.abs().amax(-1).min() > 0, "something was rounded off"


@both
def test_a_small_steady_update_is_lost_without_feedback_and_arrives_with_it(precision):
    """A fifth of the step beside a number of 1: rounded to nothing, every single time."""
    small = 0.2 * STEP["int8"] if precision == "int8" else 1e-9
    update = torch.tensor([1.0, small])
    times = 50 if precision == "int8" else 400
    forgetful, feeding, residuals = 0.0, 0.0, {}
    for _ in range(times):
        forgetful += exchange(update, precision, {})[0][1].item()
        got, residuals = exchange(update, precision, residuals)
        feeding += got[1].item()
    assert forgetful == 0.0
    assert feeding == pytest.approx(
        times * small, abs=STEP["int8"] if precision == "int8" else 6e-8
    )


def test_codes_by_hand():
    """(2, −1, 0.01) / (2/127): 127, −63.5 to the even 64, 0.6 to 1; ties to even, as everywhere."""
    x = torch.tensor([[2.0, -1.0, 0.01], [0.0, 0.0, 0.0]])
    packed, left = pack("train", {"x": x, "n": torch.tensor([3, 4])}, {}, "int8", {})
    assert packed["x"].tolist() == [[127, -64, 1], [0, 0, 0]]
    assert packed["x"].dtype == torch.int8
    assert packed["n"].tolist() == [3, 4], "no number that counts is rounded"
    torch.testing.assert_close(packed["x:scale"], torch.tensor([[2 / 127], [0.0]]))
    back = unpack(packed, {})
    assert set(back) == {"x", "n"}
    torch.testing.assert_close(back["x"][0], torch.tensor([254.0, -128.0, 2.0]) / 127)
    torch.testing.assert_close(left["residual:train:x"], x - back["x"])


def test_a_model_is_sent_as_an_update_of_what_it_was_trained_from():
    """Around 1,000 a step would be 8; the update of 0.1 has steps of 0.0008."""
    base = torch.full((4,), 1000.0)
    got, _ = exchange(base + torch.tensor([0.1, 0.05, -0.02, 0.0]), "int8", {}, base)
    torch.testing.assert_close(got - base, torch.tensor([0.1, 0.05, -0.02, 0.0]), atol=5e-4, rtol=0)
    got, _ = exchange(base, "int8", {}, torch.zeros(3))
    assert got.tolist() == base.tolist(), "what has another shape is no base"


@given(
    values=st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=8),
    precision=st.sampled_from(["float16", "int8"]),
)
def test_any_finite_row_survives_to_within_a_step(values, precision):
    row = torch.tensor(values)
    got, residuals = exchange(row, precision, {})
    assert got.isfinite().all()
    peak = row.abs().max().item()
    assert (got - row).abs().max().item() <= 0.6 * STEP[precision] * peak + 2e-43
    torch.testing.assert_close(residuals["residual:train:x"] + got, row)


def test_numbers_that_can_hardly_be_divided_do_not_wrap_around():
    """150 of the smallest numbers there are, by 127, is one of them: the code stops at 127."""
    tiniest = 2.0**-149
    packed, _ = pack("train", {"x": torch.tensor([150 * tiniest, -tiniest])}, {}, "int8", {})
    assert packed["x"].tolist() == [127, -1]
    packed, left = pack("train", {"x": torch.tensor([tiniest])}, {}, "int8", {})
    assert (packed["x"].tolist(), left["residual:train:x"].tolist()) == ([0], [tiniest])


def test_what_no_client_has_packed_is_left_for_the_screening():
    codes, scale = torch.ones(2, 3, dtype=torch.int8), torch.ones(2, 1)
    assert unpack({"x": codes, "x:scale": scale}, {})["x"].dtype == torch.float32
    for bad in (scale.double(), scale[:1], torch.ones(2, 3)):
        assert unpack({"x": codes, "x:scale": bad}, {})["x"] is codes
    assert unpack({"x": codes}, {})["x"] is codes
    alone = {"y:scale": scale}
    assert unpack(alone, {}) == alone


class Remembering(Client):
    """Sends a third of what it was sent, and says what its memory holds."""

    def train(self, down):
        assert not take_residuals(dict(self.state)), "what was rounded off is no method's business"
        self.state["own"] = down["x"]
        return Reply({"delta": down["x"] / 3})

    def personal(self, down):
        raise NotImplementedError


@pytest.mark.parametrize("engine", [LocalClients, WireClients])
def test_what_was_rounded_off_is_in_the_clients_memory_and_outlives_a_divergence(engine):
    sites, states = quadratic_federation(CENTERS[:1], (1,)), MemoryStates()
    clients = engine(Remembering, MethodConfig(), sites, states=states, payload="int8")

    def call(step, t, down):
        (reply,) = clients.call(step, t, down).values()
        return {0: Reply(unpack(reply.tensors, bases(CENTERS[0], down[0])), reply.metrics)}

    x = torch.tensor([3.0, 0.01])
    first = call("train", 1, {0: {"x": x}})[0].tensors["delta"]
    memory = states.get(0)
    assert set(memory) == {"own", "residual:train:delta"}
    torch.testing.assert_close(memory["residual:train:delta"], x / 3 - first)

    diverged = call("train", 2, {0: {"x": torch.tensor([float("nan"), 1.0])}})[0]
    assert (diverged.tensors, diverged.metrics["diverged"]) == ({}, 1.0)
    assert states.get(0).keys() == memory.keys()
    assert all(torch.equal(states.get(0)[key], memory[key]) for key in memory)
    second = call("train", 3, {0: {"x": x}})[0].tensors["delta"]
    assert not torch.equal(first, second)


def play(name, engine, precision, spoil=None):
    """Outcomes, server and engine after a few rounds of a method on toy tasks."""
    method = METHODS[name]
    config = method.config(lr=0.1, **OPTIONS.get(name, {}))
    clients = engine(method.client, config, quadratic_federation(CENTERS, SIZES), payload=precision)
    server = method.server(config, make_setup(CENTERS, SIZES, ROUNDS))
    outcomes = []
    run_rounds(server, spoil(clients) if spoil else clients, range(1, ROUNDS + 1), outcomes.append)
    return outcomes, server, clients


def payloads(server):
    return [server.payload(i) for i in range(len(CENTERS))]


@every_method
@both
def test_every_method_runs_on_rounded_messages_alike_in_process_and_over_the_wire(name, precision):
    here, server, clients = play(name, LocalClients, precision)
    there, other, wired = play(name, WireClients, precision)
    exact, unrounded, _ = play(name, LocalClients, "float32")
    assert [o.answered for o in here] == [(0, 1, 2)] * ROUNDS
    assert [(o.bytes_up, o.bytes_down) for o in here] == [(o.bytes_up, o.bytes_down) for o in there]
    for i, (one, two) in enumerate(zip(payloads(server), payloads(other), strict=True)):
        assert all(torch.equal(one[key], two[key]) for key in one)
        mine, theirs = clients.states.get(i), wired.states.get(i)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    if name != "local":
        assert all(a.bytes_up < b.bytes_up for a, b in zip(here, exact, strict=True))
        pairs = zip(payloads(server), payloads(unrounded), strict=True)
        assert not all(torch.equal(a[key], b[key]) for a, b in pairs for key in a)
    assert [o.bytes_down for o in here] == [o.bytes_down for o in exact], "the way down is exact"


def data_bytes(message):
    """What follows the header of a serialised message."""
    return len(message) - 8 - int.from_bytes(message[:8], "little")


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", ["fedavg", "pfedseq", "apple", "pefll"])
def test_the_ledger_is_the_length_of_what_was_serialised(name, precision, monkeypatch):
    """Each call serialises memory, message and reply, in this order."""
    made, encode = [], wire.encode

    def noted(tensors, metrics=None):
        made.append(encode(tensors, metrics))
        return made[-1]

    monkeypatch.setattr(wire, "encode", noted)
    method = METHODS[name]
    config = method.config(lr=0.1)
    engine = WireClients(
        method.client, config, quadratic_federation(CENTERS, SIZES), payload=precision
    )
    server = method.server(config, make_setup(CENTERS, SIZES, 1))
    outcomes, call = [], engine.call

    def training_only(step, t, down):
        before = len(made)
        replies = call(step, t, down)
        if step in Client.reading_steps:
            del made[before:]
        return replies

    engine.call = training_only
    run_rounds(server, engine, range(1, 2), outcomes.append)
    assert outcomes[0].bytes_down == sum(map(data_bytes, made[1::3]))
    assert outcomes[0].bytes_up == sum(map(data_bytes, made[2::3])) > 0


def test_bytes_by_hand():
    """FedAvg, 3 clients: θ of 2 rows of 10, ω of 3; a scale of 4 bytes for each of 3 rows."""
    expected = {"float32": 23 * 4, "float16": 23 * 2 + 3 * 4, "int8": 23 + 3 * 4}
    for precision, each in expected.items():
        outcomes, _, _ = play("fedavg", LocalClients, precision)
        assert [o.bytes_up for o in outcomes] == [3 * each] * ROUNDS


class Spoiling:
    """An engine in which client 2's packed replies arrive spoiled."""

    def __init__(self, clients, change):
        self.clients, self.change, self.ids = clients, change, clients.ids
        self.participants, self.members = clients.participants, clients.members

    def call(self, step, t, down):
        replies = self.clients.call(step, t, down)
        if step == "train":
            tensors = {k: self.change(k, v.clone()) for k, v in replies[2].tensors.items()}
            replies[2] = Reply(tensors, replies[2].metrics)
        return replies


def scales(change):
    return lambda name, tensor: change(tensor) if name.endswith(":scale") else tensor


@both
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (scales(lambda s: s * float("nan")), "NaN or infinity"),
        (scales(lambda s: s + float("inf")), "NaN or infinity"),
        (scales(lambda s: s * 1e6), "times as long as the median"),
        (scales(lambda s: s[:-1]), "is expected"),
        (lambda name, tensor: tensor[..., :-1], "is expected"),
    ],
    ids=["nan", "infinity", "absurd", "scales", "shape"],
)
def test_bad_updates_are_refused_as_ever(change, reason, precision):
    outcomes, server, _ = play(
        "pfedseq", LocalClients, precision, lambda clients: Spoiling(clients, change)
    )
    for outcome in outcomes:
        assert outcome.answered == (0, 1)
        assert reason in outcome.refused[2]
    assert all(p["adapter"].isfinite().all() for p in payloads(server))


def test_fedavg_finds_the_mean_of_the_centers_on_int8_too():
    """What is rounded off is not lost: the fixed point is that of exact messages."""
    method, config = METHODS["fedavg"], METHODS["fedavg"].config(lr=0.3)
    clients = LocalClients(
        method.client, config, quadratic_federation(CENTERS, SIZES), payload="int8"
    )
    server = method.server(config, make_setup(CENTERS, SIZES, 60))
    run_rounds(server, clients, range(1, 61), lambda outcome: None)
    total = sum(SIZES)
    mean = sum((n / total * c for n, c in zip(SIZES, CENTERS, strict=True)), 0 * CENTERS[0])
    got = Params.of(server.payload(0))
    torch.testing.assert_close(got.flat(), mean.flat(), atol=0.01, rtol=0)


def test_noise_and_rounding_exclude_each_other():
    with pytest.raises(
        InputError, match=r"privacy\.noise is added to what clients send in float32"
    ):
        make_config({"privacy": {"noise": 1.0}, "federation": {"payload": "int8"}})
