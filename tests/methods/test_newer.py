"""The newer methods: rounds worked by hand, and rounds of LoRAs against plain PyTorch.

On the quadratic task the gradient is φ − c, so a step of rate η from φ goes to φ − η (φ − c).
"""

import pytest
import torch
from torch import nn

from pfedseq.engines.local import LocalClients
from pfedseq.errors import InputError
from pfedseq.federation import Reply, Setup
from pfedseq.lora import Matrices
from pfedseq.methods import METHODS
from pfedseq.methods.flexlora import truncated_mean
from pfedseq.params import Params
from tests.product_task import (
    EXACT,
    NARROW,
    RANK,
    K,
    LoRA,
    ProductSite,
    averaged,
    descend,
    loss_of,
    product_of,
    products,
    run_two_rounds,
)
from tests.toys import QuadraticTask, make_setup, play, random_centers

SIZES = (1, 3)
P = (0.25, 0.75)


def two_clients():
    return random_centers(2, adapter_dim=10)


def replies_of(name, server, clients, t):
    return clients.call("train", t, {i: server.payload(i) for i in clients.ids})


def test_fedprox_is_pulled_back_to_what_it_received():
    """η = ½, μ = 1, two batches, from 0.

    First ½ c. There the gradient is −½ c and the pull ½ c: nothing moves. Without the pull it
    would be ¾ c, with the wrong sign of it 1 c.
    """
    centers = two_clients()
    config = METHODS["fedprox"].config(lr=0.5, proximal_weight=1.0)
    server, _ = play(METHODS["fedprox"], config, centers, SIZES, 1, num_batches=2)
    mean = P[0] * centers[0].adapter + P[1] * centers[1].adapter
    torch.testing.assert_close(server.adapter, 0.5 * mean)


def test_scaffold_corrects_by_the_difference_of_controls():
    """η = ½, two batches; k the client's center, m = Σ p_i k_i.

    Round 1, all controls 0: y = ¾ k, the gradients were −k and −½ k, so c_i = −¾ k; x = ¾ m,
    c = −¾ m. Round 2 adds −c_i + c = ¾ k − ¾ m to every gradient: ¾ m − k becomes −¼ k, y goes to
    ¾ m + ⅛ k; there ¾ m − ⅞ k becomes −⅛ k, and y ends at ¾ m + 3/16 k. c_i = ¾ m − 15/16 k.
    """
    centers = two_clients()
    method = METHODS["scaffold"]
    config = method.config(lr=0.5)
    server, clients = play(method, config, centers, SIZES, 1, num_batches=2)
    mean = P[0] * centers[0].flat() + P[1] * centers[1].flat()
    torch.testing.assert_close(Params(server.adapter, server.head).flat(), 0.75 * mean)
    torch.testing.assert_close(server.payload(0)["control"], -0.75 * mean)
    replies = replies_of("scaffold", server, clients, 2)
    for i, center in enumerate(centers):
        k = center.flat()
        y = Params.of(replies[i].tensors).flat()
        torch.testing.assert_close(y, 0.75 * mean + 0.1875 * k)
        torch.testing.assert_close(replies[i].tensors["control"], 0.75 * mean - 0.9375 * k)


def test_scaffold_keeps_the_control_of_who_is_absent_and_follows_its_clients():
    centers = random_centers(3, adapter_dim=10)
    method = METHODS["scaffold"]
    server, clients = play(method, method.config(lr=0.5), centers, (1, 1, 2), 1)
    before = server.controls.clone()
    down = {i: server.payload(i) for i in (0, 2)}
    server.update(2, clients.call("train", 2, down))
    assert torch.equal(server.controls[1], before[1])
    assert not torch.equal(server.controls[0], before[0])
    kept = server.controls[[0, 2]].clone()
    server.reseat([0, 2], {7: 5})
    assert torch.equal(server.controls, torch.cat([kept, torch.zeros_like(kept[:1])]))
    expected = (1 * kept[0] + 2 * kept[1]) / 8  # the newcomer's 5 examples have a control of zero
    torch.testing.assert_close(server.payload(0)["control"], expected)


def test_ghbm_sends_the_step_back_and_clients_go_against_it():
    """One client, η = ½, two batches, τ = 1, β = ½.

    Round 1: ¾ k, no m. Then m = (0 − ¾ k) / 1 = −¾ k, and each of two steps also goes
    −½ m / 2 = 3/16 k: ¾ k → 7/8 k + 3/16 k = 17/16 k → 33/32 k + 3/16 k = 39/32 k.
    """
    (center,) = random_centers(1, adapter_dim=10)
    method = METHODS["ghbm"]
    config = method.config(lr=0.5, server_momentum=0.5, server_window=1)
    server, clients = play(method, config, [center], (1,), 1, num_batches=2)
    torch.testing.assert_close(server.payload(0)["momentum"], -0.75 * center.flat())
    server.run_round(2, clients)
    torch.testing.assert_close(server.adapter, 39 / 32 * center.adapter)
    torch.testing.assert_close(server.head, 39 / 32 * center.head)


def test_fedrod_trains_a_balanced_head_for_all_and_adds_one_for_itself():
    """η = ½, one batch, n_c = 1, 2, 3, so b = (0, log 2, log 3) on the biases, here all of ω.

    Generic, from 0: ω − η (ω + b − c) = ½ (c − b). Personal, on top: ω − η (ω − c) from ½ (c − b)
    is ¼ (c − b) + ½ c, which is ½ (c − b) + ω_i with ω_i = ¼ c + ¼ b.
    """
    centers = two_clients()
    server, clients = play(METHODS["fedrod"], METHODS["fedrod"].config(lr=0.5), centers, SIZES, 1)
    b = torch.tensor([0.0, 2.0, 3.0]).clamp(min=1).log()
    generic = [0.5 * (c.head - b) for c in centers]
    torch.testing.assert_close(server.head, P[0] * generic[0] + P[1] * generic[1])
    for i, c in enumerate(centers):
        torch.testing.assert_close(clients.states.get(i)["own_head"], 0.25 * (c.head + b))
        client = METHODS["fedrod"].client(clients.config, QuadraticTask(c), clients.states.get(i))
        personal = client.personal(server.payload(i))
        torch.testing.assert_close(personal.head, server.head + 0.25 * (c.head + b))


def test_fedsa_shares_a_alone():
    """θ = A (2, 2) then B (3, 2) in each row: A's four entries are averaged."""
    centers = two_clients()
    method = METHODS["fedsa_lora"]
    server, clients = play(method, method.config(lr=0.5), centers, SIZES, 1)
    mean = 0.5 * (P[0] * centers[0].adapter + P[1] * centers[1].adapter)
    torch.testing.assert_close(server.payload(0), {"lora_a": mean[:, :4]})
    for i, center in enumerate(centers):
        client = method.client(clients.config, QuadraticTask(center), clients.states.get(i))
        personal = client.personal(server.payload(i))
        torch.testing.assert_close(personal.adapter[:, :4], mean[:, :4])
        torch.testing.assert_close(personal.adapter[:, 4:], 0.5 * center.adapter[:, 4:])
        torch.testing.assert_close(personal.head, 0.5 * center.head)


def test_ffa_never_moves_a():
    centers = two_clients()
    method = METHODS["ffa_lora"]
    server, clients = play(method, method.config(lr=0.5), centers, SIZES, 1, num_batches=2)
    mean = 0.75 * (P[0] * centers[0].adapter + P[1] * centers[1].adapter)
    torch.testing.assert_close(server.payload(0)["adapter"], mean[:, 4:])
    client = method.client(clients.config, QuadraticTask(centers[0]), {})
    personal = client.personal(server.payload(0))
    assert (personal.adapter[:, :4] == 0).all()  # A⁰ of the toy
    torch.testing.assert_close(personal.adapter[:, 4:], mean[:, 4:])


def test_feddpa_against_plain_pytorch():
    tasks, setup = products(2)
    a, lr = 0.3, 0.05
    config = METHODS["feddpa"].config(lr=lr, own_weight=a)
    found = run_two_rounds("feddpa", config, tasks, setup)
    first, second = setup.factors.split(setup.initial.adapter, 2)
    shared = LoRA(first, setup.initial.head)
    own = [LoRA(second, setup.initial.head) for _ in tasks]
    for _ in range(2):
        local = []
        for task, mine in zip(tasks, own, strict=True):
            model = LoRA(first, setup.initial.head)
            model.load_state_dict(shared.state_dict())
            descend(
                model.parameters(), lambda m=model, t=task: loss_of(t, m.product(), m.head), 2, lr
            )
            local.append(model)
            frozen = shared.product().detach()
            descend(
                mine.parameters(),
                lambda m=mine, t=task, f=frozen: loss_of(t, (1 - a) * f + a * m.product(), m.head),
                2,
                lr,
            )
        shared.load_state_dict(averaged(local, setup.num_examples))
    for phi, mine in zip(found, own, strict=True):
        expected = (1 - a) * shared.product() + a * mine.product()
        torch.testing.assert_close(product_of(setup, phi), expected.detach(), **EXACT)
        torch.testing.assert_close(phi.head, mine.head.detach(), **EXACT)


def test_fedalt_against_plain_pytorch():
    tasks, setup = products(2)
    a, lr = 0.6, 0.05
    found = run_two_rounds("fedalt", METHODS["fedalt"].config(lr=lr, own_weight=a), tasks, setup)
    first, second = setup.factors.split(setup.initial.adapter, 2)
    own = [LoRA(second, setup.initial.head) for _ in tasks]
    others = [LoRA(first, setup.initial.head) for _ in tasks]
    for _ in range(2):
        for task, mine, rest in zip(tasks, own, others, strict=True):
            frozen = rest.product().detach()
            descend(
                mine.parameters(),
                lambda m=mine, t=task, f=frozen: loss_of(t, (1 - a) * f + a * m.product(), m.head),
                2,
                lr,
            )
        for i, rest in enumerate(others):
            rest.load_state_dict(averaged([m for j, m in enumerate(own) if j != i], (1, 1)))
    for phi, mine, rest in zip(found, own, others, strict=True):
        expected = (1 - a) * rest.product() + a * mine.product()
        torch.testing.assert_close(product_of(setup, phi), expected.detach(), **EXACT)
        torch.testing.assert_close(phi.head, mine.head.detach(), **EXACT)


def test_fedalt_leaves_out_those_that_have_sent_nothing():
    centers = random_centers(3, adapter_dim=10)
    method = METHODS["fedalt"]
    server = method.server(method.config(), make_setup(centers, (1, 1, 1)))
    assert torch.equal(server.payload(1)["others"], server.initial)
    server.adapters = torch.arange(3.0)[:, None, None].expand_as(server.adapters).clone()
    server.known = torch.tensor([True, False, True])
    assert (server.payload(0)["others"] == 2).all()
    assert (server.payload(1)["others"] == 1).all()
    server.reseat([2, 0], {9: 4})
    assert (server.payload(2)["others"] == 1).all()
    assert (server.payload(0)["others"] == 0).all()


def test_fedalt_counts_an_absent_client_with_what_it_sent_last():
    centers = random_centers(3, adapter_dim=10)
    method = METHODS["fedalt"]
    server = method.server(method.config(), make_setup(centers, (1, 2, 5)))

    def sent(**of):
        return {
            int(i[1]): Reply({"adapter": torch.full_like(server.initial, x)}) for i, x in of.items()
        }

    server.update(1, sent(c0=1.0, c1=2.0))
    assert (server.payload(2)["others"] == 1.5).all()  # whatever their numbers of examples
    server.update(2, sent(c1=4.0, c2=7.0))
    assert (server.payload(1)["others"] == 4.0).all()  # of 1 and 7
    assert (server.payload(2)["others"] == 2.5).all()  # of 1 and 4


@pytest.mark.parametrize(
    "name", ["fedsa_lora", "ffa_lora", "flexlora", "feddpa", "fedalt", "floral"]
)
def test_a_server_without_factors_is_refused(name):
    setup = make_setup(random_centers(2, adapter_dim=7), (1, 1))
    assert setup.factors is None
    with pytest.raises(
        InputError, match=rf"{METHODS[name].title.removesuffix('-T')} works on LoRA"
    ):
        METHODS[name].server(METHODS[name].config(), setup)


def test_floral_against_plain_pytorch():
    tasks, setup = products(2)
    lr, mixing_lr = 0.05, 0.4
    config = METHODS["floral"].config(lr=lr, mixing_lr=mixing_lr, num_adapters=2)
    found = run_two_rounds("floral", config, tasks, setup)
    blocks = setup.factors.split(setup.initial.adapter, 2)
    head = setup.initial.head
    shared = nn.ModuleList([LoRA(theta, head) for theta in blocks])
    logits = [torch.zeros(2, dtype=torch.float64, requires_grad=True) for _ in tasks]
    for _ in range(2):
        local = []
        for task, rho in zip(tasks, logits, strict=True):
            model = nn.ModuleList([LoRA(theta, head) for theta in blocks])
            model.load_state_dict(shared.state_dict())
            optimizer = torch.optim.SGD(
                [{"params": model.parameters()}, {"params": [rho], "lr": mixing_lr}], lr=lr
            )
            for _ in range(2):
                optimizer.zero_grad()
                mixture = rho.softmax(0)
                product = sum(w * lora.product() for w, lora in zip(mixture, model, strict=True))
                loss_of(task, product, model[0].head).backward()
                optimizer.step()
            local.append(model)
        shared.load_state_dict(averaged(local, setup.num_examples))
    for phi, rho in zip(found, logits, strict=True):
        parts = zip(rho.softmax(0), shared, strict=True)
        expected = sum(w * lora.product() for w, lora in parts)
        torch.testing.assert_close(product_of(setup, phi), expected.detach(), **EXACT)
        torch.testing.assert_close(phi.head, shared[0].head.detach(), **EXACT)


def test_flexlora_sends_the_best_approximation_of_the_mean_product():
    rng = torch.Generator().manual_seed(0)
    clients = Matrices(
        torch.randn(3, K, RANK, 5, generator=rng, dtype=torch.float64),
        torch.randn(3, K, 6, RANK, generator=rng, dtype=torch.float64),
    )
    weights = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)
    dense = sum(w * b @ a for w, a, b in zip(weights, *clients, strict=True))
    for rank in (1, 2, 5):
        found = truncated_mean(clients, weights, rank)
        u, s, v = torch.linalg.svd(dense, full_matrices=False)
        best = u[..., :rank] * s[:, None, :rank] @ v[:, :rank]
        torch.testing.assert_close(found.up @ found.down, best, **EXACT)


def test_flexlora_cuts_to_each_clients_rank_which_training_keeps():
    tasks, setup = products(1)
    method = METHODS["flexlora"]
    config = method.config(lr=0.1, ranks=(1, 2))
    server = method.server(config, setup)
    sites = [ProductSite(lambda task=task: task) for task in tasks]
    clients = LocalClients(method.client, config, sites)
    server.run_round(1, clients)
    down = {i: server.payload(i) for i in range(3)}
    replies = clients.call("train", 2, down)
    for i, rank in enumerate((1, 2, 1)):
        for theta in (down[i]["adapter"], replies[i].tensors["adapter"]):
            (m,) = setup.factors.matrices(theta)
            assert (torch.linalg.matrix_rank(m.up @ m.down) == rank).all()
            assert (m.down[:, rank:] == 0).all()
            assert (m.up[..., rank:] == 0).all()


def test_flexloras_ranks_stay_with_the_clients_when_some_leave():
    """Clients 0, 1, 2 have ranks 1, 2, 1; without client 0, client 1 at place 0 keeps its two."""
    _, setup = products(1)
    method = METHODS["flexlora"]
    server = method.server(method.config(ranks=(1, 2, 1)), setup)
    server.reseat([1, 2], {4: 3})  # client 4 has rank 2: the ranks begin anew

    def rank_of_place(i):
        (m,) = setup.factors.matrices(server.payload(i)["adapter"])
        return torch.linalg.matrix_rank(m.up @ m.down).tolist()

    assert [rank_of_place(i) for i in range(3)] == [[2] * K, [1] * K, [2] * K]


def test_flexloras_ranks_by_name_follow_the_site_and_not_its_place():
    """Sites a, b and c; when a leaves and d, which has no entry, joins, b keeps its rank."""
    _, setup = products(1)
    method = METHODS["flexlora"]
    setup = Setup(**{**vars(setup), "name_of": "abcd".__getitem__})
    server = method.server(method.config(ranks={"b": 1, "elsewhere": 1}), setup)

    def ranks():
        adapters = (server.payload(i)["adapter"] for i in range(server.setup.num_clients))
        found = [setup.factors.matrices(adapter)[0] for adapter in adapters]
        return [int(torch.linalg.matrix_rank(m.up @ m.down)[0]) for m in found]

    assert ranks() == [2, 1, 2]
    server.reseat([1, 2], {3: 3})
    assert ranks() == [1, 2, 2]


def test_the_mean_model_of_feddpa_is_the_global_lora_alone():
    tasks, setup = products(2)
    method = METHODS["feddpa"]
    server = method.server(method.config(own_weight=0.3), setup)
    client = method.client(method.config(own_weight=0.3), tasks[0], {})
    first, second = setup.factors.split(setup.initial.adapter, 2)
    mean = client.mean_model(server.mean())
    (m,) = NARROW.matrices(first)
    torch.testing.assert_close(product_of(setup, mean), m.up @ m.down, **EXACT)
    both = client.personal(server.payload(0))
    (own,) = NARROW.matrices(second)
    expected = 0.7 * m.up @ m.down + 0.3 * own.up @ own.down
    torch.testing.assert_close(product_of(setup, both), expected, **EXACT)


def test_the_mean_model_of_floral_is_an_even_mixture():
    tasks, setup = products(2)
    method = METHODS["floral"]
    config = method.config(num_adapters=2)
    logits = torch.tensor([2.0, -1.0], dtype=torch.float64)
    client = method.client(config, tasks[0], {"logits": logits})
    server = method.server(config, setup)
    parts = [NARROW.matrices(theta)[0] for theta in setup.factors.split(setup.initial.adapter, 2)]
    one, other = (m.up @ m.down for m in parts)
    mean = client.mean_model(server.mean())
    torch.testing.assert_close(product_of(setup, mean), 0.5 * (one + other), **EXACT)
    share = 1 / (1 + torch.exp(torch.tensor(-3.0, dtype=torch.float64)))
    expected = share * one + (1 - share) * other
    torch.testing.assert_close(
        product_of(setup, client.personal(server.payload(0))), expected, **EXACT
    )


@pytest.mark.parametrize(
    ("options", "aggregation", "said"),
    [
        ({"ranks": (3,)}, "mean", "between 1 and adapter.rank = 2"),
        ({"ranks": {"clinic-a": 3}}, "mean", "between 1 and adapter.rank = 2"),
        ({}, "median", "no median"),
    ],
)
def test_flexlora_refuses_what_it_cannot_do(options, aggregation, said):
    _, setup = products(1)
    method = METHODS["flexlora"]
    with pytest.raises(InputError, match=said):
        method.server(
            method.config(**options), Setup(**{**vars(setup), "aggregation": aggregation})
        )
