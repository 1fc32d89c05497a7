"""The toy's gradient is that of its loss, also where θ and ω are coupled."""

import pytest
import torch

from tests.toys import QuadraticTask, random_centers


@pytest.mark.parametrize("coupling", [0.0, 0.7])
def test_the_gradient_is_that_of_the_loss(coupling):
    center, phi = random_centers(2)
    task, batch = QuadraticTask(center, coupling=coupling), torch.tensor([0])
    gradient, step = task.grad(phi, batch).flat(), 1e-2
    for k, direction in enumerate(torch.eye(len(gradient))):
        ahead = task.loss(phi.unflat(phi.flat() + step * direction), batch)
        behind = task.loss(phi.unflat(phi.flat() - step * direction), batch)
        assert (ahead - behind) / (2 * step) == pytest.approx(float(gradient[k]), abs=1e-3)
