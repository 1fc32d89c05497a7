"""Algorithm 1 and Eqs. (1)–(6), by hand, against the explicit Jacobian, and by its sign."""

import pytest
import torch
from torch import nn

from pfedseq.federation import Reply, Setup
from pfedseq.learners.history import History
from pfedseq.methods import METHODS
from pfedseq.methods.parts.step_along import step_along
from pfedseq.methods.pfedseq import PFedSeqConfig, PFedSeqServer
from pfedseq.params import Params
from tests.toys import play, random_centers


class Gain(nn.Module):
    """The simplest learner that looks back: ξ = ψ · (sum of the window over its steps)."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(gain))

    def forward(self, window, known):
        return self.gain * window.sum(2).permute(2, 0, 1)  # (K, D, L, N) → (N, K, D)


def with_gain(server: PFedSeqServer, gain: float, lr: float) -> PFedSeqServer:
    server.learner = Gain(gain)
    server.optimizer = torch.optim.SGD(server.learner.parameters(), lr=lr)
    return server


def scalar_server(**options) -> PFedSeqServer:
    """Two clients of weights 1 and 3 with a one-number adapter that starts at 0."""
    initial = Params(torch.zeros(1, 1), torch.zeros(1))
    config = PFedSeqConfig(**options)
    return PFedSeqServer(config, Setup(initial, (1, 3), num_rounds=9, seed=0))


def replies(*deltas: float):
    return {i: Reply({"delta": torch.tensor([[d]])}) for i, d in enumerate(deltas)}


def adapters(server) -> list[float]:
    return [server.payload(i)["adapter"].item() for i in range(2)]


def test_three_rounds_by_hand():
    """Two clients, weights (1/4, 3/4), W = 1, L = 2, ξ = ψ · ΣΔ, ψ = 0.5, SGD with rate 0.1.

    t = 1: Δ = (4, 8). No history, so ψ stays 0.5. θ̃ = 0 + Δ = (4, 8);
           θ̃_g = 4/4 + 3·8/4 = 7; t ≤ W, so θ = (7, 7).
    t = 2: Δ = (2, −2). Window Δ^{1:1} = (4, 8), dξ/dψ = (4, 8), so
           Δψ = 4·2 + 8·(−2) = −8 and ψ = 0.5 + 0.1·(−8) = −0.3.
           θ̃ = (9, 5); θ̃_g = 9/4 + 15/4 = 6. Window Δ^{1:2}, sums (6, 6):
           ξ = −0.3 · (6, 6) = (−1.8, −1.8); θ = (4.2, 4.2).
    t = 3: Δ = (1, 3). Window Δ^{1:2}: dξ/dψ = (6, 6), Δψ = 6·1 + 6·3 = 24, ψ = −0.3 + 2.4 = 2.1.
           θ̃ = (5.2, 7.2); θ̃_g = 1.3 + 5.4 = 6.7. Window Δ^{2:3}, sums (3, 1):
           ξ = 2.1 · (3, 1) = (6.3, 2.1); θ = (13, 8.8).
    """
    server = with_gain(scalar_server(warmup_rounds=1, max_sequence_length=2), 0.5, lr=0.1)
    server.update(1, replies(4, 8))
    assert adapters(server) == pytest.approx([7, 7])
    assert server.learner.gain.item() == pytest.approx(0.5)
    server.update(2, replies(2, -2))
    assert server.learner.gain.item() == pytest.approx(-0.3)
    assert adapters(server) == pytest.approx([4.2, 4.2])
    server.update(3, replies(1, 3))
    assert server.learner.gain.item() == pytest.approx(2.1)
    assert adapters(server) == pytest.approx([13, 8.8])


def test_variant_a_emits_the_adapter_itself():
    """The second round of the hand-worked run with ξ on top of θ^0 = 0 instead of θ̃_g."""
    server = with_gain(
        scalar_server(warmup_rounds=1, max_sequence_length=2, ablation="no_aggregation"), 0.5, 0.1
    )
    server.update(1, replies(4, 8))
    server.update(2, replies(2, -2))
    assert adapters(server) == pytest.approx([-1.8, -1.8])


def test_variant_b_sees_the_last_round_alone():
    """L = 1: after the second round ξ = ψ Δ^2 = −0.3 · (2, −2)."""
    server = with_gain(scalar_server(warmup_rounds=1, ablation="no_cross_step"), 0.5, 0.1)
    server.update(1, replies(4, 8))
    server.update(2, replies(2, -2))
    assert adapters(server) == pytest.approx([6 - 0.6, 6 + 0.6])


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, -8.8),
        ({"history_gap": "zero"}, -4.4),
        ({"history_gap": "last"}, -8.8),
        ({"history_gap": "decayed"}, -6.6),
    ],
)
def test_an_absent_client_keeps_its_place_in_the_history_and_has_none_in_the_mean(options, first):
    """Client 0 misses t = 2: θ̃_g is client 1's 5; its own θ is still made, with Δ_0 in the gap.

    Δψ = 4·0 + 8·(−2) = −16, ψ = −1.1; sums (4 + gap, 6), gap 0, 4 or 2: ξ = −1.1 · sums.
    """
    options = {"warmup_rounds": 1, "max_sequence_length": 2, **options}
    server = with_gain(scalar_server(**options), 0.5, lr=0.1)
    server.update(1, replies(4, 8))
    server.update(2, {1: Reply({"delta": torch.tensor([[-2.0]])})})
    assert adapters(server) == pytest.approx([5 + first, 5 - 6.6])


@pytest.mark.parametrize("t", [1, 2, 3, 4, 7])
def test_windows(t):
    """After round t the window is Δ^{max(1, t−L+1) : t}, oldest first: Eq. (6) with L = 3."""
    history = History(3)
    assert not history
    for j in range(1, t + 1):
        history.append(torch.full((2, 1, 1), float(j)))
    expected = [float(j) for j in range(max(1, t - 3 + 1), t + 1)]
    assert history.window()[0, 0, :, 1].tolist() == expected
    assert history.window().shape == (1, 1, len(expected), 2)


def small_server(**options):
    """Three clients after three rounds; a learner that is all Mamba and nowhere zero."""
    initial = Params(torch.zeros(2, 4), torch.zeros(3))
    config = PFedSeqConfig(state_dim=4, **{"zero_projections": False, "gain": 1.0} | options)
    server = PFedSeqServer(config, Setup(initial, (1, 2, 5), 9, seed=0))
    rng = torch.Generator().manual_seed(1)
    for _ in range(3):
        server.history.append(torch.randn(3, 2, 4, generator=rng))
    return server, torch.randn(3, 2, 4, generator=rng)


def test_learner_update_equals_the_explicit_jacobian():
    """Eq. (5): one SGD step of rate 1 adds Δψ = Σ_i (∂ξ_i/∂ψ)ᵀ Δ_i, J built entry by entry."""
    server, deltas = small_server()
    window = server.history.window()
    parameters = dict(server.learner.named_parameters())
    names = list(parameters)
    jacobian = torch.autograd.functional.jacobian(
        lambda *values: torch.func.functional_call(
            server.learner, dict(zip(names, values, strict=True)), (window,)
        ),
        tuple(p.detach() for p in parameters.values()),
    )
    before = {name: p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.SGD(server.learner.parameters(), lr=1.0)
    step_along(optimizer, server.learner(window), deltas)
    for name, j in zip(names, jacobian, strict=True):
        expected = torch.tensordot(deltas, j, dims=3)
        torch.testing.assert_close(
            parameters[name].detach() - before[name], expected, rtol=1e-3, atol=1e-5
        )


def test_learner_moves_its_output_along_the_update():
    """The sign of Eq. (5): after a small step, ⟨ξ' − ξ, Δ⟩ > 0; a flipped minus gives < 0."""
    server, deltas = small_server()
    window = server.history.window()
    before = server.learner(window).detach()
    step_along(torch.optim.SGD(server.learner.parameters(), 1e-3), server.learner(window), deltas)
    assert ((server.learner(window).detach() - before) * deltas).sum() > 0


def test_the_round_trains_on_the_window_before_its_own_update():
    """Eq. (5) uses Δ^{1:t−1}: the gradient must not see Δ^t as an input."""
    server, deltas = small_server(warmup_rounds=9)
    window = server.history.window()
    reference, _ = small_server(warmup_rounds=9)
    step_along(reference.optimizer, reference.learner(window), deltas)
    server.update(4, {i: Reply({"delta": deltas[i]}) for i in range(3)})
    for mine, theirs in zip(
        server.learner.parameters(), reference.learner.parameters(), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_calibrations_scale_with_the_updates():
    """Updates a thousand times smaller give calibrations a thousand times smaller."""
    server, _ = small_server()
    window = server.history.window()
    with torch.no_grad():
        large, small = server.learner(window), server.learner(window * 1e-3)
    torch.testing.assert_close(small * 1e3, large, rtol=1e-4, atol=1e-6)


def test_the_model_sees_rows_of_rms_one():
    """With a model that emits the newest step, ξ = gain · scale · (Δ / scale) = 3 Δ."""
    server, _ = small_server(gain=3.0)
    seen = []

    class Spy(nn.Module):
        def forward(self, window):
            seen.append(window)
            return window[:, :, -1]

    server.learner.model = Spy()
    window = server.history.window()
    out = server.learner(window)
    torch.testing.assert_close(out, 3 * window[:, :, -1].permute(2, 0, 1))
    rms = seen[0].square().mean((2, 3)).sqrt()
    torch.testing.assert_close(rms, torch.ones_like(rms))


def test_variant_c_mixes_no_clients():
    """Without cross-client modelling a client's ξ depends on its own updates alone."""
    server, _ = small_server(ablation="no_cross_client")
    window = server.history.window()
    changed = window.clone()
    changed[..., 1] += 1.0
    with torch.no_grad():
        before, after = server.learner(window), server.learner(changed)
    torch.testing.assert_close(after[[0, 2]], before[[0, 2]])
    assert not torch.allclose(after[1], before[1])
    with torch.no_grad():  # shared weights: equal sequences give equal calibrations
        swapped = server.learner(window[..., [1, 0, 2]])
    torch.testing.assert_close(swapped[[1, 0, 2]], before)


def test_the_full_method_does_mix_clients():
    server, _ = small_server()
    window = server.history.window()
    changed = window.clone()
    changed[..., 1] += 1.0
    with torch.no_grad():
        assert not torch.allclose(server.learner(changed)[0], server.learner(window)[0])


def test_warm_up_equals_averaged_adapters_with_own_heads():
    """For t ≤ W: θ contracts to the weighted mean, ω_i to its own center, trained together."""
    centers, lr = random_centers(2), 0.25
    config = PFedSeqConfig(lr=lr, warmup_rounds=3)
    server, clients = play(METHODS["pfedseq"], config, centers, (1, 3), 3)
    mean = 0.25 * centers[0].adapter + 0.75 * centers[1].adapter
    for i, center in enumerate(centers):
        torch.testing.assert_close(server.payload(i)["adapter"], (1 - (1 - lr) ** 3) * mean)
        torch.testing.assert_close(clients.states.get(i)["head"], (1 - (1 - lr) ** 3) * center.head)


def test_a_window_of_zeros_is_no_trouble():
    """Clients that have converged send Δ = 0; the calibration is then 0, not NaN."""
    server, _ = small_server()
    with torch.no_grad():
        assert torch.equal(server.learner(torch.zeros(2, 4, 3, 3)), torch.zeros(3, 2, 4))


@pytest.mark.parametrize("residual", ["none", "newest"])
def test_before_it_has_learnt_anything_the_learner_is_its_residual(residual):
    server, _ = small_server(residual=residual, zero_projections=True)
    window = server.history.window()
    newest = window[:, :, -1].permute(2, 0, 1)
    with torch.no_grad():
        torch.testing.assert_close(
            server.learner(window), newest if residual == "newest" else torch.zeros_like(newest)
        )


@pytest.mark.parametrize("part", ["common", "personal"])
def test_one_part_of_the_calibration_alone(part):
    """The second round of the hand-worked run with sums (6, 14): ξ = −0.3 · (6, 14) = (−1.8, −4.2).

    ψ is held at −0.3. θ̃ = (9, 13), θ̃_g = 9/4 + 39/4 = 12;
    common −1.8/4 − 3·4.2/4 = −3.6, personal (1.8, −0.6).
    """
    server = with_gain(scalar_server(warmup_rounds=1, ablation=part), -0.3, lr=0.0)
    server.update(1, replies(4, 8))
    server.update(2, replies(2, 6))
    expected = {"common": [12 - 3.6, 12 - 3.6], "personal": [12 + 1.8, 12 - 0.6]}
    assert adapters(server) == pytest.approx(expected[part])


def test_frozen_is_the_mean_adapter():
    """A learner that starts at zero and is never trained leaves every client the mean."""
    centers = random_centers(3)
    config = PFedSeqConfig(lr=0.25, warmup_rounds=1, ablation="frozen")
    frozen, _ = play(METHODS["pfedseq"], config, centers, (1, 1, 1), 5)
    warming = config.model_copy(update={"warmup_rounds": 5, "ablation": "none"})
    warm, _ = play(METHODS["pfedseq"], warming, centers, (1, 1, 1), 5)
    for i in range(3):
        assert torch.equal(frozen.payload(i)["adapter"], warm.payload(i)["adapter"])


@pytest.mark.parametrize("architecture", ["mamba", "lstm", "mlp", "linear"])
def test_forgetting_shrinks_the_output_weights_alone(architecture):
    """Δ = 0 teaches nothing, so a round takes a quarter of the output weights and no more."""
    server, deltas = small_server(
        architecture=architecture, forgetting=0.25, warmup_rounds=9, max_sequence_length=5
    )
    with torch.no_grad():
        for weight in server.learner.model.output_weights():
            weight.fill_(2.0)
    before = {name: p.detach().clone() for name, p in server.learner.named_parameters()}
    outputs = {id(p) for p in server.learner.model.output_weights()}
    server.update(4, {i: Reply({"delta": torch.zeros_like(deltas[i])}) for i in range(3)})
    for name, parameter in server.learner.named_parameters():
        if id(parameter) in outputs:
            torch.testing.assert_close(parameter.detach(), 0.75 * before[name])
        else:
            assert torch.equal(parameter, before[name]), "not even by Adam's own decay"


def test_the_learner_does_the_work():
    """On a federation with known optima the trained learner is nearer to them than `frozen`.

    Δ_i = κ (a_i − θ_i). The mean adapter stays at ā, a distance |a_i − ā| from each optimum, and so
    does whatever is common to all; a learner that lives covers a part of it (8 % after 60 rounds).
    """
    generator = torch.Generator().manual_seed(0)
    optima = 0.05 * torch.randn(4, 2, 64, generator=generator)
    distances = {}
    for ablation in ("none", "frozen", "common"):
        initial = Params(torch.zeros(2, 64), torch.zeros(1))
        config = PFedSeqConfig(warmup_rounds=5, max_sequence_length=10, ablation=ablation)
        server = PFedSeqServer(config, Setup(initial, (1,) * 4, num_rounds=60, seed=0))
        for t in range(1, 61):
            deltas = 0.1 * (optima - server.adapters)
            server.update(t, {i: Reply({"delta": deltas[i]}) for i in range(4)})
        distances[ablation] = (server.adapters - optima).square().mean().sqrt().item()
    assert distances["none"] < 0.95 * distances["frozen"]
    assert distances["none"] < 0.95 * distances["common"], "what is personal must pay"


def test_the_server_tells_the_sizes_of_what_it_did():
    """Round 2 of the hand-worked run: Δ = (2, −2), ξ = (−1.8, −1.8), θ̃_g = 6, θ^0 = 0."""
    server = with_gain(scalar_server(warmup_rounds=1, max_sequence_length=2), 0.5, lr=0.1)
    server.update(1, replies(4, 8))
    assert server.figures["calibration_rms"] == [0.0]
    server.update(2, replies(2, -2))
    expected = {"delta": 2, "calibration": 1.8, "common": 1.8, "personal": 0, "distance": 6}
    for name, size in expected.items():
        assert server.figures[f"{name}_rms"] == pytest.approx([size], abs=1e-6)


@pytest.mark.parametrize("architecture", ["lstm", "mlp", "linear"])
def test_other_architectures_learn_in_the_same_place(architecture):
    server, deltas = small_server(architecture=architecture, max_sequence_length=5)
    window = server.history.window()
    before = server.learner(window).detach()
    step_along(torch.optim.SGD(server.learner.parameters(), 1e-3), server.learner(window), deltas)
    assert ((server.learner(window).detach() - before) * deltas).sum() > 0
