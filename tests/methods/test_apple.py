"""APPLE: its two gradients against autograd, two rounds by hand, and its schedule."""

import pytest
import torch

from pfedseq.federation import Setup
from pfedseq.methods import METHODS
from pfedseq.methods.apple import AppleClient, AppleConfig, AppleServer
from pfedseq.params import Params
from tests.toys import ScatteredTask, make_setup, personal_models, play, random_centers

CENTERS = random_centers(3)
SIZES = (4, 2, 3)


def message(cores: list[Params], index: int, prior_pull: float) -> dict[str, torch.Tensor]:
    return {
        "adapters": torch.stack([core.adapter for core in cores]),
        "heads": torch.stack([core.head for core in cores]),
        "prior": torch.tensor([0.2, 0.5, 0.3]),
        "prior_pull": torch.tensor(prior_pull),
        "index": torch.tensor(index),
    }


def test_both_gradients_are_those_of_autograd():
    """Three batches of SGD on F(c_i, p) = L(Σ_j p_j c_j; B) + λμ ‖p − p⁰‖², by autograd.

    Core and relations move together: each gradient is taken before either has moved.
    """
    cores, start = random_centers(3, seed=8), torch.tensor([0.9, -0.4, 0.3])
    i, lr, relation_lr, pull = 1, 0.2, 0.05, 0.7
    task = ScatteredTask(CENTERS[0], 6, order=torch.Generator().manual_seed(1))
    state = {"relations": start}
    client = AppleClient(AppleConfig(lr=lr, relation_lr=relation_lr), task, state)
    reply = client.train(message(cores, i, pull))

    rows = torch.stack([core.flat() for core in cores])
    own, relations = rows[i].clone().requires_grad_(), start.clone().requires_grad_()
    prior = torch.tensor([0.2, 0.5, 0.3])
    twin = ScatteredTask(CENTERS[0], 6, order=torch.Generator().manual_seed(1))
    for batch in twin.batches(1):
        mixed = relations[0] * rows[0] + relations[1] * own + relations[2] * rows[2]
        loss = 0.5 * (mixed - task.points()[batch]).square().sum(1).mean()
        objective = loss + pull * (relations - prior).square().sum()
        of_own, of_relations = torch.autograd.grad(objective, (own, relations))
        with torch.no_grad():
            own -= 3 * lr * of_own  # N η: p_ii is about 1/N
            relations -= relation_lr * of_relations
    torch.testing.assert_close(Params(**reply.tensors).flat(), own.detach())
    torch.testing.assert_close(state["relations"], relations.detach())


def test_two_rounds_by_hand():
    """One-number adapters from 0, centers (8, −16), weights (1/4, 3/4), η = 0.25, η_p = 0.01.

    N η = 0.5.
    t = 1: both mixtures are 0, so g = (−8, 16). ⟨g, c_j⟩ = 0 and p = p⁰: the relations stay
           (1/4, 3/4). c_1 = 0 + 0.5 · 1/4 · 8 = 1; c_2 = 0 − 0.5 · 3/4 · 16 = −6.
    t = 2: both mixtures are 1/4 − 18/4 = −4.25; g_1 = −12.25, g_2 = 11.75; still p = p⁰.
           p_1 = (0.25 + 0.01 · 12.25 · 1, 0.75 − 0.01 · 12.25 · 6) = (0.3725, 0.015);
           p_2 = (0.25 − 0.01 · 11.75 · 1, 0.75 + 0.01 · 11.75 · 6) = (0.1325, 1.455).
           c_1 = 1 + 0.5 · 0.25 · 12.25 = 2.53125; c_2 = −6 − 0.5 · 0.75 · 11.75 = −10.40625.
    Tested: p_1 and p_2 with these fresh cores.
    """
    centers = [Params(torch.tensor([[c]]), torch.zeros(1)) for c in (8.0, -16.0)]
    config = AppleConfig(lr=0.25, relation_lr=0.01)
    server, clients = play(METHODS["apple"], config, centers, (1, 3), rounds=2)
    down = {i: server.payload(i) for i in range(2)}
    tested = personal_models(clients, 2, down)
    for i, p in enumerate([(0.3725, 0.015), (0.1325, 1.455)]):
        torch.testing.assert_close(clients.states.get(i)["relations"], torch.tensor(p))
        assert down[i]["adapters"].flatten().tolist() == pytest.approx([2.53125, -10.40625])
        mixture = p[0] * 2.53125 - p[1] * 10.40625
        assert tested[i].adapter.item() == pytest.approx(mixture)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("exponential", [1, 0.001**0.25, 0.001**0.5, 0.001**0.75]),
        ("cosine", [1, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_pull_to_the_prior_fades_within_its_share_of_the_rounds(schedule, expected):
    """T = 40, L = 4: λ(0), …, λ(3) as given, then 0; the message carries λ(r) μ."""
    config = AppleConfig(prior_schedule=schedule, prior_weight=0.2)
    server = AppleServer(config, Setup(CENTERS[0], SIZES, num_rounds=40, seed=0))
    client = METHODS["apple"].client
    pulls = []
    for t in range(1, 7):
        down = server.payload(0)
        pulls.append(down["prior_pull"].item())
        server.update(t, {0: client(config, ScatteredTask(CENTERS[0], 4), {}).train(down)})
    assert pulls == pytest.approx([0.2 * value for value in (*expected, 0, 0)], abs=1e-7)


def test_the_share_of_the_rounds_with_the_pull_can_be_chosen():
    """T = 8, L = 4."""
    config = AppleConfig(prior_share=0.5)
    assert config.loss_schedule(2, num_rounds=8) == pytest.approx(0.001**0.5)
    assert config.loss_schedule(4, num_rounds=8) == 0


def test_a_short_run_still_begins_with_the_pull():
    assert AppleConfig().loss_schedule(0, num_rounds=3) == 1
    assert AppleConfig().loss_schedule(1, num_rounds=3) == 0


def test_all_cores_go_down_and_one_comes_up():
    config = AppleConfig()
    server, clients = play(METHODS["apple"], config, CENTERS, SIZES, rounds=1)
    down = server.payload(2)
    model = CENTERS[0].flat().numel()
    assert down["adapters"].numel() + down["heads"].numel() == 3 * model
    assert down["index"].item() == 2
    torch.testing.assert_close(down["prior"], torch.tensor([4, 2, 3]) / 9)
    reply = clients.call("train", 2, {2: down})[2]
    assert sum(tensor.numel() for tensor in reply.tensors.values()) == model


def test_the_core_of_an_absent_client_stays():
    server = AppleServer(AppleConfig(), make_setup(CENTERS, SIZES, initial=CENTERS[0]))
    client = AppleClient(AppleConfig(lr=0.3), ScatteredTask(CENTERS[1], 4), {})
    reply = client.train(server.payload(1))
    server.update(1, {1: reply})
    assert torch.equal(server.adapters[1], reply.tensors["adapter"])
    assert torch.equal(server.heads[1], reply.tensors["head"])
    for absent in (0, 2):
        assert torch.equal(server.adapters[absent], CENTERS[0].adapter)
        assert torch.equal(server.heads[absent], CENTERS[0].head)
