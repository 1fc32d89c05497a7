"""Attribution of calibrations against learners whose account is known."""

import pytest
import torch

from pfedseq.federation import Setup
from pfedseq.learners.attribution import attribute
from pfedseq.learners.calibration import CalibrationLearner, LearnerConfig
from pfedseq.params import Params

K, D, L, N = 2, 5, 3, 4


@pytest.fixture
def window():
    return torch.randn(K, D, L, N, generator=torch.Generator().manual_seed(0)).double()


def test_a_linear_learners_account_is_exact(window):
    """ξ_i = Σ_j M_ij Σ_r w_r Δ_j^r: the part of (j, r) is M_ij w_r ⟨Δ_j^r, ξ_i⟩ / ‖ξ_i‖².

    Leaving client j out takes just the sum of its parts away.
    """
    generator = torch.Generator().manual_seed(1)
    mixing = torch.randn(N, N, generator=generator).double()
    weights = torch.tensor([0.2, 0.3, 1.0]).double()

    def learner(inputs):
        return torch.einsum("ij,kdrj,r->ikd", mixing, inputs, weights)

    found = attribute(learner, window)
    outputs = learner(window)
    for i in range(N):
        for j in range(N):
            for r in range(L):
                along = (window[:, :, r, j] * outputs[i]).sum() / outputs[i].square().sum()
                assert found.parts[i, j, r] == pytest.approx(mixing[i, j] * weights[r] * along)
    torch.testing.assert_close(found.by_client, found.left_out)
    torch.testing.assert_close(found.by_client.sum(1), torch.ones(N).double())
    assert found.agreement == pytest.approx(1)


def test_a_client_that_only_hears_itself_owes_nothing_to_others(window):
    found = attribute(lambda inputs: inputs.sum(2).permute(2, 0, 1).tanh(), window)
    apart = 1 - torch.eye(N).double()
    assert (found.by_client * apart).abs().max() == 0
    assert (found.left_out * apart).abs().max() < 1e-12
    torch.testing.assert_close(found.left_out.diagonal(), torch.ones(N).double())


def test_what_a_learner_adds_by_itself_is_nobodys(window):
    """ξ = c + Δ^L: leaving everyone's window out leaves c; parts do not add up to 1."""
    found = attribute(lambda inputs: inputs[:, :, -1].permute(2, 0, 1) + 5, window)
    assert (found.parts[..., :-1] == 0).all()
    assert (found.by_client.sum(1) < 0.5).all()


def test_a_silent_learner_has_no_account(window):
    found = attribute(lambda inputs: 0 * inputs.sum(2).permute(2, 0, 1), window)
    assert (found.parts == 0).all()
    assert (found.left_out == 0).all()
    assert found.agreement is None


@pytest.mark.parametrize("architecture", ["mamba", "lstm"])
def test_the_parts_of_a_scaled_learner_add_up_to_one(architecture):
    """It is homogeneous in its window, so gradient × input is all of it (Euler)."""
    setup = Setup(Params(torch.zeros(K, D), torch.zeros(1)), (1,) * N, 9, 0)
    config = LearnerConfig(architecture=architecture, zero_projections=False)
    learner = CalibrationLearner(config, setup)
    window = 1e-3 * torch.randn(K, D, L, N, generator=torch.Generator().manual_seed(2))
    window[1, 2] = 0  # an adapter parameter that nobody has moved yet
    found = attribute(learner, window)
    torch.testing.assert_close(found.by_client.sum(1), torch.ones(N), rtol=2e-3, atol=2e-3)
    assert found.parts.abs().max() > 0.01
