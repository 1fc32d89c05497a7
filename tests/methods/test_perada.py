"""PerAda: Ditto's recursion with 2λ and equal weights, and the distillation step by step."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import kl_div

from pfedseq.errors import InputError
from pfedseq.federation import Reply
from pfedseq.methods import METHODS
from pfedseq.params import Params
from tests.toys import ToyAuxiliary, make_setup, play, random_centers

PERADA = METHODS["perada"]
CENTERS = random_centers(2)
SIZES = (1, 3)  # without effect: PerAda weighs all clients alike
ETA, LAMBDA = 0.25, 0.3
MEAN = 0.5 * (CENTERS[0] + CENTERS[1])


def config(**options):
    return PERADA.config(lr=ETA, proximal_weight=LAMBDA, **options)


def personal(clients, i):
    return Params(clients.states.get(i)["adapter"], clients.states.get(i)["head"])


def assert_params(actual, expected, **tolerances):
    torch.testing.assert_close(actual.adapter, expected.adapter, **tolerances)
    torch.testing.assert_close(actual.head, expected.head, **tolerances)


def test_three_rounds_without_distillation():
    """From φ = v_i = 0, with one step each a round and the φ that was received:

    v_i ← v_i − η ((v_i − c_i) + 2λ (v_i − φ)),   φ ← mean of (φ − η (φ − c_i)) = φ + η (c̄ − φ),
    so φ^t = (1 − (1 − η)^t) c̄ with the plain mean c̄.
    """
    server, clients = play(PERADA, config(distillation_steps=0), CENTERS, SIZES, rounds=3)
    shared, own = 0.0 * MEAN, [0.0 * MEAN, 0.0 * MEAN]
    for _ in range(3):
        own = [
            v - ETA * ((v - c) + 2 * LAMBDA * (v - shared))
            for v, c in zip(own, CENTERS, strict=True)
        ]
        shared = shared + ETA * (MEAN - shared)
    for i in range(2):
        assert_params(personal(clients, i), own[i])
        assert_params(Params(**server.payload(i)), (1 - (1 - ETA) ** 3) * MEAN)


def test_personal_models_settle_between_their_center_and_the_mean():
    """The fixed point of the recursion: v_i = (c_i + 2λ c̄) / (1 + 2λ)."""
    _, clients = play(PERADA, config(distillation_steps=0), CENTERS, SIZES, rounds=120)
    for i, center in enumerate(CENTERS):
        expected = (1 / (1 + 2 * LAMBDA)) * (center + 2 * LAMBDA * MEAN)
        assert_params(personal(clients, i), expected, rtol=1e-4, atol=1e-5)


def models():
    rng = torch.Generator().manual_seed(7)
    return [
        Params(2 * torch.randn(2, 5, generator=rng), 2 * torch.randn(3, generator=rng))
        for _ in range(3)
    ]


def three_clients(**options):
    return PERADA.server(config(**options), make_setup(random_centers(3), (1, 2, 3)))


def replies_with(teachers, ids=(0, 1, 2)):
    return {i: Reply({"adapter": teachers[i].adapter, "head": teachers[i].head}) for i in ids}


def distilled(teachers, steps, lr, batch_size, t):
    """Adam and the cosine written out, on autograd's gradient of PyTorch's own KL.

    Step k = 0 … S−1 has rate lr · (1 + cos(πk/S)) / 2; m̂ and ŝ are Adam's corrected moments.
    """
    auxiliary = ToyAuxiliary(teachers[0])
    flat = torch.stack([torch.cat([w.adapter.flatten(), w.head]) for w in teachers])
    phi, m, s = flat.mean(0), torch.zeros(13), torch.zeros(13)
    for k, batch in enumerate(auxiliary.batches(t, steps, batch_size)):
        maps = auxiliary.maps[batch]
        teacher = torch.stack([3 * torch.tanh(maps @ w) for w in flat]).mean(0)
        leaf = phi.clone().requires_grad_()
        student = 3 * torch.tanh(maps @ leaf)
        loss = kl_div(student.log_softmax(1), teacher.softmax(1), reduction="sum")
        (g,) = torch.autograd.grad(loss / batch_size, leaf)
        m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g * g
        m_hat, s_hat = m / (1 - 0.9 ** (k + 1)), s / (1 - 0.999 ** (k + 1))
        rate = lr * (1 + math.cos(math.pi * k / steps)) / 2
        phi = phi - rate * m_hat / (s_hat.sqrt() + 1e-8)
    return Params(phi[:10].view(2, 5), phi[10:])


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_distillation_step_by_step(steps):
    """From the plain mean of the models, whatever their |D_i|, towards the mean of their logits."""
    teachers = models()
    server = three_clients(
        distillation_steps=steps, distillation_lr=0.05, distillation_batch_size=4
    )
    server.update(2, replies_with(teachers))
    expected = distilled(teachers, steps, 0.05, 4, t=2)
    assert_params(Params(**server.payload(0)), expected, rtol=1e-4, atol=1e-5)


def test_the_student_comes_nearer_to_the_mean_teacher():
    """The sign: KL(teacher ‖ student) over all images falls against that of the plain mean."""
    teachers = models()
    auxiliary = ToyAuxiliary(teachers[0])
    setup = make_setup(random_centers(3), (1, 2, 3))
    everything = torch.arange(6)
    teacher = auxiliary.logits(teachers, everything).mean(0)

    def divergence(steps):
        server = PERADA.server(config(distillation_steps=steps, distillation_lr=0.02), setup)
        server.update(1, replies_with(teachers))
        student = auxiliary.logits([Params(**server.payload(0))], everything)[0]
        return kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean").item()

    assert divergence(0) > 0.01
    assert divergence(100) < 0.5 * divergence(0)


def test_the_toys_gradient_is_that_of_the_divergence():
    """The formula in `ToyAuxiliary`, against autograd of PyTorch's KL(p ‖ q)."""
    student, other, _ = models()
    auxiliary, batch = ToyAuxiliary(student), torch.tensor([1, 4, 4])
    teacher = auxiliary.logits([other], batch)[0]
    flat = torch.cat([student.adapter.flatten(), student.head]).requires_grad_()
    logits = 3 * torch.tanh(auxiliary.maps[batch] @ flat)
    loss = kl_div(logits.log_softmax(1), teacher.softmax(1), reduction="batchmean")
    (gradient,) = torch.autograd.grad(loss, flat)
    actual = auxiliary.distillation_grad(student, batch, teacher)
    torch.testing.assert_close(torch.cat([actual.adapter.flatten(), actual.head]), gradient)


def test_an_absent_client_neither_counts_nor_teaches():
    teachers = models()
    server = three_clients(distillation_steps=3, distillation_lr=0.05, distillation_batch_size=4)
    server.update(1, replies_with(teachers, ids=(2, 0)))
    expected = distilled([teachers[0], teachers[2]], 3, 0.05, 4, t=1)
    assert_params(Params(**server.payload(1)), expected, rtol=1e-4, atol=1e-5)


def test_distillation_can_end_after_some_rounds():
    teachers = models()
    limited = three_clients(distillation_steps=3, distillation_rounds=2)
    limited.update(2, replies_with(teachers))
    mean = (1 / 3) * (teachers[0] + teachers[1] + teachers[2])
    assert not torch.allclose(limited.adapter, mean.adapter, atol=1e-4)
    limited.update(3, replies_with(teachers))
    assert_params(Params(**limited.payload(0)), mean)


def test_distilling_leaves_the_replies_as_they_were():
    teachers = models()
    before = [Params(w.adapter.clone(), w.head.clone()) for w in teachers]
    three_clients(distillation_steps=3).update(1, replies_with(teachers, ids=(1,)))
    for now, then in zip(teachers, before, strict=True):
        assert torch.equal(now.adapter, then.adapter)
        assert torch.equal(now.head, then.head)


def test_without_auxiliary_images_there_is_no_perada():
    setup = replace(make_setup(CENTERS, SIZES), auxiliary=None)
    with pytest.raises(InputError, match=r"\[auxiliary\]"):
        PERADA.server(PERADA.config(), setup)
