"""What optimisers remember between rounds: nothing, at the client, or averaged by the server."""

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.engines.answer import DIVERGED, answer
from pfedseq.engines.conditions import FederationConfig
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import MethodConfig, Reply
from pfedseq.methods import METHODS
from pfedseq.methods.ditto import DittoConfig
from pfedseq.methods.local import LocalClient
from pfedseq.params import Params
from pfedseq.runs.checkpoint import Checkpoints
from tests.every_method import OPTIONS
from tests.toys import (
    QuadraticSite,
    QuadraticTask,
    ScatteredSite,
    make_setup,
    personal_models,
    quadratic_federation,
    random_centers,
)

CENTERS, SIZES, ROUNDS = random_centers(3, adapter_dim=10), (4, 2, 3), 4
CENTER = CENTERS[0]
MOMENTUM = ({"momentum": 0.9}, torch.optim.SGD, {"momentum": 0.9})
ADAMW = ({"optimizer": "adamw"}, torch.optim.AdamW, {"weight_decay": 0.0})
both_optimizers = pytest.mark.parametrize(("ours", "optimizer", "theirs"), [MOMENTUM, ADAMW])
KEEP = {"optimizer_state": "keep"}
AVERAGE = {"optimizer": "adamw", "optimizer_state": "average"}


@both_optimizers
@pytest.mark.parametrize("kept", [True, False])
def test_a_kept_state_goes_on_where_it_was_and_a_reset_one_begins_anew(
    ours, optimizer, theirs, kept
):
    """Three rounds of two steps: one optimizer of PyTorch for all of them, or one for each."""
    state: dict[str, torch.Tensor] = {}
    config = MethodConfig(lr=0.1, **ours, **(KEEP if kept else {}))
    reference = torch.zeros_like(CENTER.flat(), requires_grad=True)
    theirs_now = optimizer([reference], lr=0.1, **theirs)
    for _ in range(3):
        client = LocalClient(config, QuadraticTask(CENTER, 1, num_batches=2), state)
        client.train({})
        if not kept:
            theirs_now = optimizer([reference], lr=0.1, **theirs)
        for _ in range(2):
            theirs_now.zero_grad()
            (0.5 * (reference - CENTER.flat()).square().sum()).backward()
            theirs_now.step()
    torch.testing.assert_close(client.personal({}).flat(), reference.detach())
    assert any(name.startswith("optimizer/") for name in state) == kept


def federation(name, engine=LocalClients, **options):
    method = METHODS[name]
    config = method.config(lr=0.1, **OPTIONS.get(name, {}), **options)
    sites = [ScatteredSite(i, c, n) for i, (c, n) in enumerate(zip(CENTERS, SIZES, strict=True))]
    return method.server(config, make_setup(CENTERS, SIZES, ROUNDS)), engine(
        method.client, config, sites
    )


def run(server, clients, rounds):
    outcomes = []
    run_rounds(server, clients, rounds, outcomes.append)
    down = {i: server.payload(i) for i in clients.ids}
    return personal_models(clients, rounds[-1], down), outcomes


def assert_equal(a, b):
    for i, phi in a.items():
        assert torch.equal(phi.flat(), b[i].flat()), i


REMEMBERING = [
    *((name, {"momentum": 0.9, **KEEP}) for name in METHODS),
    *((name, {"optimizer": "adamw", **KEEP}) for name in METHODS),
    *((name, AVERAGE) for name, method in METHODS.items() if method.client.sent_model),
]


@pytest.mark.parametrize(
    ("name", "options"),
    REMEMBERING,
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values())),
)
def test_resuming_and_the_wire_change_nothing(name, options, tmp_path):
    whole, _ = run(*federation(name, **options), range(1, ROUNDS + 1))
    wired, _ = run(*federation(name, WireClients, **options), range(1, ROUNDS + 1))
    assert_equal(whole, wired)
    fresh, _ = run(
        *federation(name, **(options | {"optimizer_state": "reset"})), range(1, ROUNDS + 1)
    )
    assert any(not torch.equal(whole[i].flat(), fresh[i].flat()) for i in whole)
    server, clients = federation(name, **options)
    run(server, clients, range(1, 3))
    saved = Checkpoints(tmp_path, clients.states, {})
    saved.states.changed.update(clients.ids)
    saved.save(2, server)
    server, clients = federation(name, **options)
    t = Checkpoints(tmp_path, clients.states, {}).load(server, torch.device("cpu"), pytest.fail)
    resumed, _ = run(server, clients, range(t + 1, ROUNDS + 1))
    assert_equal(whole, resumed)


def test_a_client_that_diverges_keeps_its_former_moments():
    config = MethodConfig(lr=0.1, momentum=0.9, **KEEP)
    state: dict[str, torch.Tensor] = {}
    answer(
        LocalClient, config, QuadraticSite(lambda: QuadraticTask(CENTER)), state, "train", 1, 0, {}
    )
    before = {name: tensor.clone() for name, tensor in state.items()}
    assert "optimizer/model/head/momentum" in before
    broken = Params(CENTER.adapter * torch.inf, CENTER.head)
    reply = answer(
        LocalClient, config, QuadraticSite(lambda: QuadraticTask(broken)), state, "train", 2, 0, {}
    )
    assert reply.metrics[DIVERGED]
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in before)


def test_second_moments_are_averaged_and_first_ones_begin_anew():
    """FedAvg of two clients (|D_i| = 1 and 3) with two steps a round, written out in float64.

    Each round a client starts with m = 0, v = v̄ and c = c̄, the means by |D_i| of what the clients
    ended the last round with; v̂ = v / c and m̂ = m / (1 − β₁^k).
    """
    method, centers, sizes = METHODS["fedavg"], random_centers(2, adapter_dim=10), (1, 3)
    config = method.config(lr=0.1, head_lr=0.02, betas=(0.8, 0.95), **AVERAGE)
    clients = LocalClients(method.client, config, quadratic_federation(centers, sizes, 2))
    server = method.server(config, make_setup(centers, sizes, 3))
    run_rounds(server, clients, range(1, 4), lambda outcome: None)

    zero, size = torch.zeros_like(CENTER.flat()).double(), CENTER.adapter.numel()
    rates = torch.cat([zero[:size] + 0.1, zero[size:] + 0.02])
    phi, second, share = zero, zero, 0.0
    for _ in range(3):
        ends = []
        for center in centers:
            x, v, c, m = phi, second, share, zero
            for k in (1, 2):
                g = x - center.flat().double()
                m, v, c = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g, 0.95 * c + 0.05
                x = x - rates * (m / (1 - 0.8**k)) / ((v / c).sqrt() + 1e-8)
            ends.append((x, v, c))
        phi, second, share = (0.25 * a + 0.75 * b for a, b in zip(*ends, strict=True))
    torch.testing.assert_close(
        Params.of(server.payload(0)).flat().double(), phi, rtol=1e-5, atol=1e-6
    )
    found = server.moments.tensors
    torch.testing.assert_close(
        found["optimizer/adapter/second"].flatten().double(), second[:size], rtol=1e-5, atol=1e-7
    )
    assert float(found["optimizer/head/second_share"]) == pytest.approx(share, rel=1e-5)


def test_averages_are_counted_and_those_of_a_private_head_are_not_sent():
    """Of θ and c each way; after round 1 they go down, too. ω's stay in the state."""
    server, clients = federation("fedrep", **AVERAGE)
    _, outcomes = run(server, clients, range(1, 3))
    plain_server, plain = federation("fedrep")
    _, without = run(plain_server, plain, range(1, 3))
    more = 3 * 4 * (CENTER.adapter.numel() + 1)  # three clients, float32
    assert [o.bytes_up - w.bytes_up for o, w in zip(outcomes, without, strict=True)] == [more, more]
    down = [o.bytes_down - w.bytes_down for o, w in zip(outcomes, without, strict=True)]
    assert down == [0, more]
    assert set(server.moments.tensors) == {
        "optimizer/adapter/second",
        "optimizer/adapter/second_share",
    }
    assert "optimizer/model/head/second" in clients.states.get(0)


def test_moments_of_a_common_head_are_averaged():
    server, clients = federation("fedrep", head="both", **AVERAGE)
    run(server, clients, range(1, 3))
    averaged = server.moments.tensors["optimizer/head/second"]
    ends = [clients.states.get(i)["optimizer/model/head/second"] for i in range(3)]
    mean = sum(n * v for n, v in zip(SIZES, ends, strict=True)) / sum(SIZES)
    torch.testing.assert_close(averaged, mean)


def test_dittos_shared_model_is_the_one_whose_moments_are_averaged():
    server, clients = federation("ditto", **AVERAGE)
    run(server, clients, range(1, 3))
    averaged = server.moments.tensors["optimizer/head/second"]
    ends = [clients.states.get(i)["optimizer/shared/head/second"] for i in range(3)]
    mean = sum(n * v for n, v in zip(SIZES, ends, strict=True)) / sum(SIZES)
    torch.testing.assert_close(averaged, mean)


class Forgetful(LocalClients):
    """Client 1 sends no moments, client 2 sends misshapen ones."""

    def call(self, step, t, down):
        replies = super().call(step, t, down)
        if step == "train":
            key = "optimizer/adapter/second"
            kept = {k: v for k, v in replies[1].tensors.items() if k != key}
            replies[1] = Reply(kept, replies[1].metrics)
            short = replies[2].tensors | {key: replies[2].tensors[key][:1]}
            replies[2] = Reply(short, replies[2].metrics)
        return replies


def test_moments_are_screened_as_all_else():
    server, clients = federation("fedavg", Forgetful, **AVERAGE)
    _, (outcome,) = run(server, clients, range(1, 2))
    assert outcome.answered == (0,)
    assert "has no tensor 'optimizer/adapter/second'" in outcome.refused[1]
    assert "of shape (1, 10) where" in outcome.refused[2]


def test_the_length_of_an_update_is_that_of_the_model():
    """Huge moments make no update outsized: three clients, of whom one has a steep loss."""
    centers = [CENTERS[0], CENTERS[1], 3.0 * CENTERS[2]]
    method = METHODS["fedavg"]
    config = method.config(lr=0.1, **AVERAGE)
    clients = LocalClients(method.client, config, quadratic_federation(centers, SIZES))
    server = method.server(config, make_setup(centers, SIZES))
    outcomes = []
    conditions = FederationConfig(max_update_ratio=1.5)  # Adam's first steps are equally long
    run_rounds(server, clients, range(1, 2), outcomes.append, conditions=conditions)
    assert outcomes[0].answered == (0, 1, 2)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("local", [], "local averages no whole models"),
        ("apple", [], "apple averages no whole models"),
        ("fedavg", ["federation.payload=int8"], "cannot be sent as federation.payload = 'int8'"),
        ("fedavg", ["privacy.noise=1.0"], "would make a second moment negative"),
    ],
)
def test_what_cannot_be_averaged_is_refused(method, options, words):
    values = {"run": {"methods": [method]}, "training": AVERAGE}
    with pytest.raises(InputError, match=words):
        make_config(values, options)


def test_a_method_may_remember_otherwise_than_the_rest():
    values = {
        "run": {"methods": ["ditto", "local"]},
        "training": AVERAGE,
        "methods": {"local": {"optimizer_state": "keep"}},
    }
    config = make_config(values)
    assert config.method_config("local").optimizer_state == "keep"
    inherited = {"head": "both", "head_momentum": 0.8, "max_step": 4}
    assert config.method_config("ditto") == DittoConfig(**AVERAGE, **inherited)
    assert make_config(config.model_dump(exclude_none=True)) == config
