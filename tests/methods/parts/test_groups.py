"""Clients that are drawn the same way share a mean adapter."""

from dataclasses import replace

import pytest
import torch

from pfedseq.engines.local import LocalClients
from pfedseq.federation import Reply, Setup
from pfedseq.methods import METHODS
from pfedseq.methods.parts.groups import MOST_CLIENTS, WATCHED, GroupingConfig, Groups, alike
from pfedseq.params import Params
from pfedseq.runs.checkpoint import restore_server, server_state
from tests.toys import make_setup, quadratic_federation

SIZES = (1, 3, 2, 2)


def headings(*rows):
    """Of one layer: (N, 1, D)."""
    return torch.tensor(rows)[:, None, :]


def setup(sizes=SIZES, dim=2):
    return Setup(Params(torch.zeros(1, dim), torch.zeros(3)), tuple(sizes), 20, 0)


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        (0.81, [0, 1, 2, 3]),
        (0.79, [0, 0, 2, 3]),  # cos(a, b) = 0.8
        (0.49, [0, 0, 2, 3]),
        (0.47, [0, 0, 0, 3]),  # the mean of cos(a, c) = 0.6 and cos(b, c) = 0.36
        (0.01, [0, 0, 0, 3]),
    ],
)
def test_clusters_are_joined_while_their_mean_cosine_allows_it(least, expected):
    """a = (1, 0, 0), b = (0.8, 0.6, 0), c = (0.6, −0.2, …) of length 1, and a client unheard of."""
    c = (0.6, -0.2, (1 - 0.36 - 0.04) ** 0.5)
    same = alike(headings((2.0, 0.0, 0.0), (4.0, 3.0, 0.0), c, (0.0, 0.0, 0.0)), least)
    assert same.double().argmax(1).tolist() == expected
    assert torch.equal(same, same.T)


def test_equal_directions_are_alike_whatever_their_rounding():
    rows = torch.rand(8, 1, 50, generator=torch.Generator().manual_seed(0)).repeat(2, 1, 1)
    assert (alike(rows, 0.999).double().argmax(1) == torch.arange(16) % 8).all()


@pytest.mark.parametrize("num_clients", [1, 2])
def test_there_are_few_clients(num_clients):
    same = alike(headings(*[(1.0, 0.0), (-1.0, 0.0)][:num_clients]), 0.3)
    assert torch.equal(same, torch.eye(num_clients, dtype=torch.bool))


def test_a_group_moves_to_the_weighted_mean_of_its_members():
    """From θ̃ = ±e: clients 0 and 1 (sizes 1 and 3) went to 8 and 4, so to 5 on average."""
    groups = Groups(GroupingConfig(group_cosine=0.3), setup())
    everyone, sizes = torch.ones(4, dtype=torch.bool), torch.tensor(SIZES, dtype=torch.float)
    updated = headings((8.0, 1.0), (4.0, 1.0), (-1.0, 3.0), (-3.0, -3.0))
    mean = torch.tensor([[1.0, 1.0]])
    for t in range(1, WATCHED + 1):
        groups.take(t, updated, mean, mean, everyone, sizes)
        assert torch.equal(groups.around(mean), mean.expand(4, 1, 2))
    torch.testing.assert_close(groups.headings[0], torch.tensor([[8.0, 0.0]]))  # eight of length 1
    groups.take(WATCHED + 1, updated, mean, mean, everyone, sizes)
    expected = headings((5.0, 1.0), (5.0, 1.0), (1.0, 1.0), (1.0, 1.0))
    torch.testing.assert_close(groups.around(mean), expected)
    torch.testing.assert_close(groups.of(1, mean), expected[1])
    assert groups.labels == [0, 0, 2, 3]
    # Client 0 alone answers, with 9; then nobody of the group does, and it stays there, although
    # the mean adapter goes to the others.
    updated[0, 0, 0] = 9.0
    present = torch.tensor([True, False, True, True])
    groups.take(WATCHED + 2, updated, mean, mean, present, sizes * present)
    torch.testing.assert_close(groups.around(mean)[:2], headings((9.0, 1.0), (9.0, 1.0)))
    present, others = torch.tensor([False, False, True, True]), torch.tensor([[-2.0, 0.0]])
    groups.take(WATCHED + 3, updated, mean, others, present, sizes * present)
    expected = headings((9.0, 1.0), (9.0, 1.0), (-2.0, 0.0), (-2.0, 0.0))
    torch.testing.assert_close(groups.around(others), expected)


def test_clusters_are_found_once_and_anew_for_other_clients(monkeypatch):
    asked = []

    def counted(directions, least):
        asked.append(len(directions))
        return alike(directions, least)

    monkeypatch.setattr("pfedseq.methods.parts.groups.alike", counted)
    groups, mean = Groups(GroupingConfig(group_cosine=0.3), setup()), torch.zeros(1, 2)
    updated = headings((8.0, 1.0), (4.0, 1.0), (-1.0, 3.0), (-2.0, 6.0))

    def take(t):
        n = len(groups.headings)
        everyone = torch.ones(n, dtype=torch.bool)
        groups.take(t, updated[:n], mean, mean, everyone, everyone.float())
        return groups.labels

    assert take(1) == []
    assert [take(t) for t in (9, 10)] == [[0, 0, 2, 2]] * 2
    groups.load_state_dict(groups.state_dict())
    assert take(11) == [0, 0, 2, 2]
    groups.reseat([0, 2, 3], 0)
    assert [take(t) for t in (12, 13)] == [[0, 1, 1]] * 2
    assert asked == [4, 4, 3]


def test_an_absent_client_is_not_observed():
    groups = Groups(GroupingConfig(group_cosine=0.3), setup())
    present = torch.tensor([True, False, True, True])
    updated, mean = headings((3.0, 4.0), (5.0, 5.0), (0.0, 2.0), (1.0, 0.0)), torch.zeros(1, 2)
    groups.take(1, updated, mean, mean, present, None)
    expected = headings((0.6, 0.8), (0.0, 0.0), (0.0, 1.0), (1.0, 0.0))
    torch.testing.assert_close(groups.headings, expected)


@pytest.mark.parametrize("name", ["pfedseq", "fedrep"])
def test_a_group_that_is_absent_stays_where_it_was(name):
    """Groups at ±4; when only the right one answers, the left one does not move towards it."""
    method = METHODS[name]
    options = {"ablation": "frozen", "warmup_rounds": 2} if name == "pfedseq" else {}
    server = method.server(method.config(group_cosine=0.3, **options), setup((1, 1, 1, 1)))
    ends = headings((-4.0, 1.0), (-4.0, -1.0), (4.0, 1.0), (4.0, -1.0))

    def play(t, who):
        starts = [server.payload(i)["adapter"] for i in range(4)]
        sent = {i: {"adapter": ends[i], "delta": ends[i] - starts[i]} for i in who}
        server.update(t, {i: Reply(tensors) for i, tensors in sent.items()})
        return torch.stack([server.payload(i)["adapter"] for i in range(4)])

    for t in range(1, WATCHED + 2):
        adapters = play(t, range(4))
    expected = headings((-4.0, 0.0), (-4.0, 0.0), (4.0, 0.0), (4.0, 0.0))
    torch.testing.assert_close(adapters, expected)
    for t in (WATCHED + 2, WATCHED + 3):
        torch.testing.assert_close(play(t, (2, 3)), expected)


def test_a_long_warm_up_is_watched_to_its_end():
    groups = Groups(GroupingConfig(group_cosine=0.3), setup(), warmup=30)
    updated = headings((8.0, 1.0), (4.0, 1.0), (-1.0, 3.0), (-3.0, -3.0))
    mean = torch.ones(1, 2)
    for t in (1, 30):
        groups.take(t, updated, mean, mean, torch.ones(4, dtype=torch.bool), None)
    torch.testing.assert_close(groups.headings[0], torch.tensor([[2.0, 0.0]]))


def test_a_direction_counts_once_however_short_it_is():
    groups, mean = Groups(GroupingConfig(group_cosine=0.3), setup()), torch.zeros(1, 2)
    updated = headings((3e-5, 4e-5), (0.3, 0.4), (0.0, 0.0), (30.0, -40.0))
    groups.take(1, updated, mean, mean, torch.ones(4, dtype=torch.bool), None)
    expected = headings((0.6, 0.8), (0.6, 0.8), (0.0, 0.0), (0.6, -0.8))
    torch.testing.assert_close(groups.headings, expected)


def test_no_groups_are_recorded_where_every_client_is_alone():
    groups, mean = Groups(GroupingConfig(group_cosine=0.9), setup()), torch.zeros(1, 2)
    updated = headings((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))
    everyone = torch.ones(4, dtype=torch.bool)
    for t in (1, WATCHED + 1):
        groups.take(t, updated, mean, mean, everyone, everyone.float())
    assert groups.figures() == {}
    assert torch.equal(groups.around(mean), mean.expand(4, 1, 2))


@pytest.mark.parametrize(("clients", "rows"), [(MOST_CLIENTS, MOST_CLIENTS), (MOST_CLIENTS + 1, 0)])
def test_there_are_groups_of_up_to_so_many_clients(clients, rows):
    groups = Groups(GroupingConfig(group_cosine=0.3), setup([1] * clients))
    assert len(groups.headings) == rows


@pytest.mark.parametrize("name", ["pfedseq", "fedrep"])
@pytest.mark.parametrize("options", [{"server_lr": 0.5}, {"server_momentum": 0.5}])
def test_a_groups_offset_is_from_the_mean_not_from_where_the_server_steps_to(name, options):
    method = METHODS[name]
    more = {"ablation": "frozen", "warmup_rounds": 2} if name == "pfedseq" else {}
    server = method.server(method.config(group_cosine=0.3, **more, **options), setup())
    ends = headings((8.0, 1.0), (4.0, 1.0), (-1.0, 3.0), (-3.0, -3.0))
    for t in range(1, WATCHED + 2):
        deltas = [ends[i] - server.payload(i)["adapter"] for i in range(4)]
        sent = {i: {"adapter": ends[i], "delta": deltas[i]} for i in range(4)}
        server.update(t, {i: Reply(tensors) for i, tensors in sent.items()})
    shared = server.shared if name == "pfedseq" else server.adapter
    weights = torch.tensor(SIZES, dtype=torch.float)[:, None, None]
    mean = (weights * ends).sum(0) / weights.sum()
    assert (shared - mean).abs().max() > 1e-3
    offset = (weights[:2] * ends[:2]).sum(0) / weights[:2].sum() - mean
    torch.testing.assert_close(server.payload(0)["adapter"], shared + offset)


@pytest.mark.parametrize("name", ["pfedseq", "fedrep"])
def test_clients_that_remain_keep_their_groups_mean_and_newcomers_get_everyones(name):
    """Client 2 leaves and two others join: each client's offset moves with its place."""
    method = METHODS[name]
    more = {"warmup_rounds": 2} if name == "pfedseq" else {}
    server = method.server(method.config(group_cosine=0.3, **more), setup())
    ends = headings((-3.0, -3.0), (8.0, 1.0), (-1.0, 3.0), (4.0, 1.0))

    def play(t, who):
        starts = [server.payload(i)["adapter"] for i in who]
        sent = [{"adapter": ends[i], "delta": ends[i] - starts[i]} for i in who]
        server.update(t, {i: Reply(tensors) for i, tensors in enumerate(sent)})

    for t in range(1, WATCHED + 2):
        play(t, range(4))
    before = [server.payload(i)["adapter"] for i in range(4)]
    server.reseat([0, 1, 3], {4: 1, 5: 2})
    shared = server.shared if name == "pfedseq" else server.adapter
    for place, expected in enumerate([*(before[i] for i in (0, 1, 3)), shared, shared]):
        assert torch.equal(server.payload(place)["adapter"], expected)
    assert not torch.equal(before[1], shared)
    ends = torch.cat([ends[[0, 1, 3]], headings((1.0, -1.0), (1.0, 1.0))])
    play(WATCHED + 2, range(5))
    assert server.figures["group"] == [0, 1, 1, 3, 4]


@pytest.mark.parametrize(
    ("least", "clients", "aggregation"),
    [(0.0, 4, "mean"), (0.3, MOST_CLIENTS + 1, "mean"), (0.3, 4, "median")],
)
def test_nothing_is_kept_where_there_are_no_groups(least, clients, aggregation):
    where = replace(setup([1] * clients), aggregation=aggregation)
    groups = Groups(GroupingConfig(group_cosine=least), where)
    mean = torch.ones(1, 2)
    everyone = torch.ones(clients)
    groups.take(9, torch.ones(clients, 1, 2), mean, mean, everyone, everyone)
    assert groups.around(mean) is mean
    assert groups.headings.numel() == groups.offsets.numel() == 0


def test_there_are_no_groups_where_the_learner_emits_the_adapter():
    config = METHODS["pfedseq"].config(ablation="no_aggregation", warmup_rounds=1)
    server = METHODS["pfedseq"].server(config, setup())
    deltas = headings((8.0, 1.0), (4.0, 1.0), (-1.0, 9.0), (-3.0, -9.0))
    for t in range(1, WATCHED + 2):
        server.update(t, {i: Reply({"delta": deltas[i]}) for i in range(4)})
    assert "group" not in server.figures
    assert server.groups.headings.numel() == 0


@pytest.mark.parametrize("name", ["pfedseq", "fedrep"])
@pytest.mark.parametrize("stop", [WATCHED - 2, WATCHED + 2])
def test_a_resumed_server_has_the_same_groups(name, stop):
    method = METHODS[name]
    options = {"warmup_rounds": 2} if name == "pfedseq" else {}
    config = method.config(group_cosine=0.3, **options)
    deltas = headings((8.0, 1.0), (4.0, 1.0), (-1.0, 3.0), (-3.0, -3.0))

    def play(server, rounds):
        for t in rounds:
            who = range(3) if t == WATCHED + 3 else range(4)
            adapters = [server.payload(i)["adapter"] + deltas[i] for i in range(4)]
            sent = {"pfedseq": ("delta", deltas), "fedrep": ("adapter", adapters)}
            key, tensors = sent[name]
            server.update(t, {i: Reply({key: tensors[i]}) for i in who})
        return server

    whole = play(method.server(config, setup()), range(1, WATCHED + 5))
    half = play(method.server(config, setup()), range(1, stop + 1))
    rest = method.server(config, setup())
    restore_server(rest, server_state(half))
    play(rest, range(stop + 1, WATCHED + 5))
    assert torch.equal(whole.groups.headings, rest.groups.headings)
    assert whole.groups.labels == rest.groups.labels
    assert whole.groups.labels[:2] == [0, 0]
    for i in range(4):
        assert torch.equal(whole.payload(i)["adapter"], rest.payload(i)["adapter"])


def test_newcomers_belong_to_no_group_and_the_others_keep_theirs():
    groups = Groups(GroupingConfig(group_cosine=0.3), setup())
    groups.headings = headings((1.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 0.0))
    groups.offsets = 2 * groups.headings
    groups.reseat([3, 1], 1)
    torch.testing.assert_close(groups.headings, headings((1.0, 0.0), (0.0, 1.0), (0.0, 0.0)))
    torch.testing.assert_close(groups.offsets, headings((2.0, 0.0), (0.0, 2.0), (0.0, 0.0)))


@pytest.mark.parametrize(
    ("name", "options"), [("pfedseq", {"ablation": "frozen"}), ("fedrep", {"group_cosine": 0.3})]
)
def test_groups_converge_to_the_means_of_their_own_centers(name, options):
    """Quadratic clients: c = ±a + e_i. One mean for all is at the mean of all centers."""
    drawn = torch.tensor([1.0, 0.0, 0.0, 0.0])
    apart = 0.1 * torch.eye(4)
    sides = (1, 1, -1, -1)
    centers = [
        Params((side * drawn + apart[i])[None], torch.zeros(3)) for i, side in enumerate(sides)
    ]
    method = METHODS[name]
    ends = {}
    for least in (0.3, 0.0):
        config = method.config(
            **{"lr": 0.3, "warmup_rounds": 2} | options | {"group_cosine": least}
            if name == "pfedseq"
            else {"lr": 0.3} | options | {"group_cosine": least}
        )
        clients = LocalClients(method.client, config, quadratic_federation(centers, SIZES))
        server = method.server(config, make_setup(centers, SIZES, 60))
        for t in range(1, 61):
            server.run_round(t, clients)
        ends[least] = torch.stack([server.payload(i)["adapter"] for i in range(4)])
        assert server.figures.get("group") == ([0, 0, 2, 2] if least else None)
    weights = torch.tensor(SIZES, dtype=torch.float)[:, None, None]
    tops = torch.stack([center.adapter for center in centers])

    def mean(rows):
        return (weights[rows] * tops[rows]).sum(0) / weights[rows].sum()

    for i in range(4):
        own = [0, 1] if i < 2 else [2, 3]
        torch.testing.assert_close(ends[0.3][i], mean(own), rtol=0, atol=1e-4)
        torch.testing.assert_close(ends[0.0][i], mean([0, 1, 2, 3]), rtol=0, atol=1e-4)


def test_pfedseq_adds_its_calibration_to_the_groups_mean():
    config = METHODS["pfedseq"].config(warmup_rounds=1)
    server = METHODS["pfedseq"].server(config, setup())
    deltas = headings((8.0, 1.0), (4.0, 1.0), (-1.0, 9.0), (-3.0, -9.0))
    for t in range(1, WATCHED + 2):
        before = server.adapters
        server.update(t, {i: Reply({"delta": deltas[i]}) for i in range(4)})
    updated, calibrations = before + deltas, server.adapters - server.groups.around(server.shared)
    assert calibrations.abs().max() > 0
    pair = (updated[0] + 3 * updated[1]) / 4
    torch.testing.assert_close(server.adapters[0] - calibrations[0], pair)
    torch.testing.assert_close(server.adapters[2] - calibrations[2], server.shared)
    assert server.figures["group"] == [0, 0, 2, 3]
