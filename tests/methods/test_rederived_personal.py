"""FedALA and PerAda once more in plain PyTorch, over several rounds.

An own derivation from the papers, not anybody's code, in float64 (`tests/small_problem.py`).
"""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call

from tests.small_problem import (
    BATCH,
    CLIENTS,
    SIZES,
    Data,
    Federation,
    SmallAuxiliary,
    assert_equal_nets,
    batches_of,
    distance,
    mean_of,
    sgd,
)

LR = 0.3


def mixed_in(own, new, weights, client, t, *, rate, share, threshold, part):
    """ALA: own + (new − own) ⊙ W with autograd by W; W, the mixture and how many passes.

    The first time (no W yet) until the last ten losses of passes are alike.
    """
    names = [n for n, _ in own.named_parameters()]
    learnt = {n for n in names if part == "both" or n.startswith("head") == (part == "head")}
    old, got = dict(own.named_parameters()), dict(new.named_parameters())
    first = weights is None
    weights = weights or {n: torch.ones_like(old[n]) for n in names}
    order = torch.cat(batches_of(client, t, "receive"))[: math.ceil(share * SIZES[client])]
    data, losses = Data(client), []

    def mixture(of):
        return {n: (old[n] + (got[n] - old[n]) * of[n]).detach() for n in names} | {
            n: old[n].detach() + (got[n] - old[n]).detach() * of[n] for n in learnt
        }

    while True:
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            leaves = {n: w.detach().clone().requires_grad_() for n, w in weights.items()}
            logits = functional_call(own, mixture(leaves), (data.inputs[batch],))
            loss = F.cross_entropy(logits, data.labels[batch])
            loss.backward()
            for n in learnt:
                weights[n] = (leaves[n].detach() - rate * leaves[n].grad).clamp(0, 1)
        losses.append(loss.item())
        if not first or (len(losses) > 10 and np.std(losses[-10:]) < threshold):
            break
    result = copy.deepcopy(own)
    with torch.no_grad():
        for n, p in result.named_parameters():
            p.copy_(mixture(weights)[n])
    return result, weights, len(losses)


@pytest.mark.parametrize("part", ["both", "adapter", "head"])
def test_fedala(part):
    """Every client mixes what it is sent into its own model, trains the mixture, and is averaged.

    What ALA does not learn has W = 1: it is the global model's.
    """
    options = {"weight_lr": 2.0, "data_share": 0.7, "threshold": 2e-3, "part": part}
    ours = Federation("fedala", rounds=3, options={"lr": LR, **options})
    nets, weights = [ours.start() for _ in CLIENTS], [None for _ in CLIENTS]
    passes = []
    for t in range(1, 4):
        for i, net in enumerate(nets):
            sgd(net, i, t, LR)
        shared = mean_of(nets)
        for i in CLIENTS:
            nets[i], weights[i], count = mixed_in(
                nets[i], shared, weights[i], i, t, rate=2.0, share=0.7, threshold=2e-3, part=part
            )
            passes.append(count)
    assert max(passes[:3]) > 11, "the losses' spread has a say in when the first ALA ends"
    assert max(passes[:3]) < 100, "and ends it"
    assert passes[3:] == [1] * 6
    assert any((w > 0).any() and (w < 1).any() for of in weights for w in of.values())
    assert_equal_nets(ours.play(), nets)


@pytest.mark.parametrize("limit", [None, 2])
def test_perada(limit):
    """Personal models under λ ‖v − w‖²; w is the plain mean, distilled from the mean logits.

    KL(softmax of the mean logits ‖ student), mean over the batch, by Adam; step s of S has the
    rate η (1 + cos(π s / S)) / 2.
    """
    weight, steps, rate, size, rounds = 0.4, 5, 0.02, 4, 3
    ours = Federation(
        "perada",
        rounds=rounds,
        options={
            "lr": LR,
            "proximal_weight": weight,
            "distillation_steps": steps,
            "distillation_lr": rate,
            "distillation_batch_size": size,
            "distillation_rounds": limit,
        },
    )
    shared, own = ours.start(), [ours.start() for _ in CLIENTS]
    auxiliary = SmallAuxiliary(ours.rank)
    for t in range(1, rounds + 1):
        local = [sgd(copy.deepcopy(shared), i, t, LR) for i in CLIENTS]
        for i, v in enumerate(own):
            sgd(v, i, t, LR, penalty=lambda v=v, w=shared: weight * distance(v, w))
        shared = mean_of(local, (1 / 3, 1 / 3, 1 / 3))
        if limit is not None and t > limit:
            continue
        adam = torch.optim.Adam(shared.parameters(), lr=rate)
        for s, batch in enumerate(auxiliary.batches(t, steps, size)):
            adam.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * s / steps)) / 2
            inputs = auxiliary.inputs[batch]
            teacher = torch.stack([net(inputs) for net in local]).mean(0).detach()
            adam.zero_grad()
            student = F.log_softmax(shared(inputs), 1)
            F.kl_div(student, F.softmax(teacher, 1), reduction="batchmean").backward()
            adam.step()
    found = ours.play()
    assert_equal_nets(found, own)
    server = ours.start().load_theta(ours.server.adapter)
    torch.testing.assert_close(server.theta(), shared.theta(), rtol=1e-12, atol=1e-12)
    head = torch.cat([shared.head.weight.flatten(), shared.head.bias]).detach()
    torch.testing.assert_close(ours.server.head, head, rtol=1e-12, atol=1e-12)
