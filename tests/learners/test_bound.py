"""A bound on ξ shortens and never lengthens."""

import torch

from pfedseq.learners.calibration import bounded


def test_what_is_shorter_than_the_bound_stays_as_it_is():
    shared = torch.tensor([[3.0, 4.0]])
    calibrations = torch.tensor([[[0.3, -0.4]], [[0.0, 0.0]]])
    assert torch.equal(bounded(calibrations, shared, 2.0), calibrations)
