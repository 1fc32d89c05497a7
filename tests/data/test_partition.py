import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from pfedseq.data import partition
from pfedseq.data.dataset import ClientData
from pfedseq.errors import InputError


def label_lists(min_size: int = 60) -> st.SearchStrategy[NDArray[np.int64]]:
    return st.lists(st.integers(0, 5), min_size=min_size, max_size=300).map(np.array)


def assert_dealt_once(parts: list[NDArray[np.int64]], num_images: int) -> None:
    together = np.concatenate(parts)
    assert len(together) == num_images
    np.testing.assert_array_equal(np.sort(together), np.arange(num_images))


@settings(max_examples=60, deadline=None)
@given(
    labels=label_lists(),
    num_clients=st.integers(1, 6),
    alpha=st.floats(0.1, 10),
    balanced=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_dirichlet_deals_every_image_once_and_respects_the_minimum(
    labels, num_clients, alpha, balanced, seed
):
    rng = np.random.RandomState(seed)
    parts = partition.dirichlet(labels, num_clients, alpha, rng, balanced=balanced, min_samples=1)
    assert_dealt_once(parts, len(labels))
    assert len(parts) == num_clients
    assert min(map(len, parts)) >= 1


@settings(max_examples=60, deadline=None)
@given(
    labels=label_lists(min_size=10), num_clients=st.integers(1, 10), seed=st.integers(0, 2**32 - 1)
)
def test_iid_deals_evenly_in_total_and_in_every_class(labels, num_clients, seed):
    parts = partition.iid(labels, num_clients, np.random.RandomState(seed))
    assert_dealt_once(parts, len(labels))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for label in np.unique(labels):
        counts = [int((labels[part] == label).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(1, 8),
    num_clients=st.integers(1, 12),
    k=st.integers(1, 8),
    seed=st.integers(0, 2**32 - 1),
)
def test_pathological_gives_k_classes_to_each_and_shares_classes_evenly(
    classes, num_clients, k, seed
):
    labels = np.repeat(np.arange(classes), 30)
    rng = np.random.RandomState(seed)
    if k > classes or num_clients * k < classes:
        with pytest.raises(InputError, match=r"classes_per_client|classes"):
            partition.pathological(labels, num_clients, k, rng)
        return
    parts = partition.pathological(labels, num_clients, k, rng)
    assert_dealt_once(parts, len(labels))
    held = [np.unique(labels[part]) for part in parts]
    assert {len(each) for each in held} == {k}
    holders = np.bincount(np.concatenate(held), minlength=classes)
    assert holders.max() - holders.min() <= 1


def test_owners_become_clients_and_can_be_cut_in_pieces():
    owners = np.array([2, 0, 0, 2, 2, 1, 2, 0])
    rng = np.random.RandomState(0)
    whole = partition.by_owner(owners, rng)
    assert [(owner, piece, part.tolist()) for owner, piece, part in whole] == [
        (0, 0, [1, 2, 7]),
        (1, 0, [5]),
        (2, 0, [0, 3, 4, 6]),
    ]
    largest = partition.by_owner(owners, rng, num_owners=2, pieces=2)
    assert [(owner, piece, len(part)) for owner, piece, part in largest] == [
        (0, 0, 2),
        (0, 1, 1),
        (2, 0, 2),
        (2, 1, 2),
    ]
    assert_dealt_once([np.searchsorted(np.flatnonzero(owners != 1), p) for *_, p in largest], 7)
    with pytest.raises(InputError, match="has 3 owners, fewer than the 4"):
        partition.by_owner(owners, rng, num_owners=4)


def pfllib_replay(labels, num_clients, alpha, least):
    """PFLlib's partition and split, slowly, on the global legacy generator seeded with 1.

    Per class: shuffle its images, draw shares, strike out whoever has n / N images or more,
    normalise, cut at the truncated running sums; all again until the smallest has `least`.
    """
    np.random.seed(1)  # noqa: NPY002 - the generator whose stream is replayed
    holdings = [[] for _ in range(num_clients)]
    tries = 0
    while min(len(holding) for holding in holdings) < least:
        tries += 1
        holdings = [[] for _ in range(num_clients)]
        for label in range(labels.max() + 1):
            images = np.where(labels == label)[0]
            np.random.shuffle(images)  # noqa: NPY002
            shares = np.random.dirichlet([alpha] * num_clients)  # noqa: NPY002
            for client in range(num_clients):
                if len(holdings[client]) >= len(labels) / num_clients:
                    shares[client] = 0.0
            shares = shares / shares.sum()
            start, running = 0, 0.0
            for client in range(num_clients):
                running += shares[client]
                last = client == num_clients - 1
                stop = len(images) if last else int(running * len(images))
                holdings[client] += images[start:stop].tolist()
                start = stop
    splits = [train_test_split(holding, train_size=0.75, shuffle=True) for holding in holdings]
    return holdings, splits, tries


@pytest.mark.parametrize(
    ("labels", "num_clients", "alpha"),
    [
        (load_digits().target, 10, 0.1),
        (load_digits().target, 20, 0.1),
        (np.random.RandomState(5).permutation(np.repeat(np.arange(100), 60)), 10, 0.1),
        (np.random.RandomState(6).permutation(np.repeat(np.arange(20), 50)), 12, 0.5),
    ],
    ids=["digits", "digits-20", "hundred-classes", "milder"],
)
def test_balanced_dirichlet_replays_pfllib_index_by_index(labels, num_clients, alpha):
    least = int(min(10 / 0.25, len(labels) / num_clients / 2))
    expected, expected_splits, _ = pfllib_replay(labels, num_clients, alpha, least)
    rng = np.random.RandomState(1)
    parts = partition.dirichlet(labels, num_clients, alpha, rng, balanced=True)
    assert [part.tolist() for part in parts] == expected
    for part, (train, test) in zip(parts, expected_splits, strict=True):
        split = partition.split_at_random(
            "c", part, rng, train_fraction=0.75, validation_fraction=0.1
        )
        assert split.test.tolist() == test
        assert [*split.train, *split.validation] == train


def test_cifar100s_client_sizes_are_those_of_pfllibs_seed():
    """The sizes depend on the class counts alone; an independent replay of PFLlib found
    5,111 to 6,326 images per client."""
    rng = np.random.RandomState(1)
    parts = partition.dirichlet(np.repeat(np.arange(100), 600), 10, 0.1, rng, balanced=True)
    sizes = sorted(map(len, parts))
    assert (sizes[0], sizes[-1]) == (5_111, 6_326)


def test_pfllib_replay_covers_redraws():
    """Twenty digits clients need more than one draw, so the replay above tests the redraw too."""
    *_, tries = pfllib_replay(load_digits().target, 20, 0.1, 40)
    assert tries > 1


def test_balancing_caps_the_largest_client():
    labels = np.repeat(np.arange(50), 40)
    sizes = {}
    for balanced in (True, False):
        rng = np.random.RandomState(3)
        parts = partition.dirichlet(labels, 10, 0.1, rng, balanced=balanced, min_samples=1)
        sizes[balanced] = max(map(len, parts))
    # A balanced client can pass the equal share of 200 by one class of 40 at most.
    assert sizes[True] < 200 + 40 < sizes[False]


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(4, 200),
    train=st.floats(0.3, 0.9),
    validation=st.floats(0, 0.5),
    seed=st.integers(0, 99),
)
def test_random_split_is_disjoint_complete_and_of_the_right_sizes(size, train, validation, seed):
    images = np.arange(1000, 1000 + size)
    split = partition.split_at_random(
        "c",
        images,
        np.random.RandomState(seed),
        train_fraction=train,
        validation_fraction=validation,
    )
    together = np.concatenate([split.train, split.validation, split.test])
    np.testing.assert_array_equal(np.sort(together), images)
    learning = int(np.floor(train * size))
    assert len(split.test) == size - learning
    assert abs(len(split.validation) - validation * learning) <= 1


def test_the_papers_split_of_eighty_images():
    split = partition.split_at_random(
        "c",
        np.arange(80),
        np.random.RandomState(0),
        train_fraction=0.75,
        validation_fraction=0.1,
    )
    assert (len(split.train), len(split.validation), len(split.test)) == (54, 6, 20)


def test_a_given_test_split_is_kept():
    is_test = np.array([True, False] * 20)
    images = np.arange(5, 35)
    split = partition.split_as_given(
        "c", images, is_test, np.random.RandomState(0), validation_fraction=0.2
    )
    assert sorted(split.test) == [i for i in range(5, 35) if i % 2 == 0]
    assert len(split.validation) == 3
    assert sorted([*split.train, *split.validation]) == [i for i in range(5, 35) if i % 2 == 1]


def test_impossible_numbers_are_named():
    labels = np.repeat(np.arange(10), 10)
    rng = np.random.RandomState(0)
    with pytest.raises(InputError, match="101 clients cannot share 100 examples"):
        partition.iid(labels, 101, rng)
    with pytest.raises(InputError, match="100 examples cannot give 10 clients at least 11 each"):
        partition.dirichlet(labels, 10, 0.1, rng, balanced=True, min_samples=11)
    (everything,) = partition.dirichlet(labels, 1, 0.1, rng, balanced=True, min_samples=100)
    assert len(everything) == 100, "all there is can be asked for"
    with pytest.raises(
        InputError, match=r"none of 1000 Dirichlet\(0.01\) draws gave each of 8 clients at least 12"
    ):
        partition.dirichlet(labels, 8, 0.01, rng, balanced=False, min_samples=12)
    with pytest.raises(InputError, match=r"raise data\.classes_per_client to at least 4"):
        partition.pathological(labels, 3, 2, rng)
    with pytest.raises(InputError, match="only 10 classes"):
        partition.pathological(labels, 3, 11, rng)
    with pytest.raises(InputError, match=r"class \d has 10 examples for the \d+ clients"):
        partition.pathological(labels, 60, 2, rng)


@pytest.mark.parametrize(
    ("images", "clients", "least"),
    [(2000, 10, 40), (800, 10, 40), (799, 10, 39), (70, 10, 3), (15, 10, 1), (10, 10, 1)],
)
def test_pfllibs_smallest_client_has_40_images_or_half_an_equal_share(images, clients, least):
    assert partition.pfllib_min_samples(images, clients) == least


def test_a_client_without_test_images_is_refused_by_name():
    lonely = partition.split_at_random(
        "drawer 7",
        np.arange(1),
        np.random.RandomState(0),
        train_fraction=0.75,
        validation_fraction=0.1,
    )
    with pytest.raises(
        InputError, match="client drawer 7 has 1 examples, which leaves none for tr"
    ):
        partition.check_sizes([lonely], min_samples=1, validation_fraction=0.1)
    small = partition.split_at_random(
        "drawer 8",
        np.arange(8),
        np.random.RandomState(0),
        train_fraction=0.75,
        validation_fraction=0.1,
    )
    partition.check_sizes([small], min_samples=8, validation_fraction=0.1)
    with pytest.raises(
        InputError, match=r"drawer 8 has 8 examples, fewer than data\.min_samples = 9"
    ):
        partition.check_sizes([small], min_samples=9, validation_fraction=0.1)


def test_all_owners_may_be_asked_for_and_one_more_is_refused():
    owners = np.array([0, 1, 1, 2])
    kept = partition.by_owner(owners, np.random.RandomState(0), num_owners=3)
    assert [owner for owner, _, _ in kept] == [0, 1, 2]
    with pytest.raises(InputError) as refused:
        partition.by_owner(owners, np.random.RandomState(0), num_owners=4)
    assert str(refused.value) == (
        "the data has 3 owners, fewer than the 4 asked for: lower data.num_clients or raise "
        "data.split_owners"
    )


def test_among_owners_of_one_size_those_with_the_lower_numbers_are_kept():
    """Fifty owners with two images each and every fifth with three."""
    sizes = np.where(np.arange(50) % 5 == 0, 3, 2)
    owners = np.repeat(np.arange(50), sizes)
    kept = partition.by_owner(owners, np.random.RandomState(0), num_owners=30)
    large = set(range(0, 50, 5))
    small = [n for n in range(50) if n not in large][:20]
    assert [owner for owner, _, _ in kept] == sorted([*large, *small])


def test_two_pieces_of_an_owner_are_drawn():
    owners = np.zeros(40, dtype=np.int64)
    first, second = partition.by_owner(owners, np.random.RandomState(0), pieces=2)
    assert sorted([*first[2], *second[2]]) == list(range(40))
    assert first[2].tolist() != list(range(20))


def test_what_is_missing_of_a_client_is_named():
    nothing, some = np.array([], dtype=np.int64), np.arange(3)
    lacking = ClientData("ann", train=some, validation=nothing, test=nothing)
    with pytest.raises(InputError) as refused:
        partition.check_sizes([lacking], min_samples=1, validation_fraction=0.1)
    assert str(refused.value) == (
        "client ann has 3 examples, which leaves none for test or validation: use fewer clients, "
        "or change data.train_fraction or data.validation_fraction"
    )
    without_validation = ClientData("ann", train=some, validation=nothing, test=some)
    partition.check_sizes([without_validation], min_samples=1, validation_fraction=0.0)
    with pytest.raises(InputError, match="none for validation:"):
        partition.check_sizes([without_validation], min_samples=1, validation_fraction=0.1)


def test_a_client_with_a_split_of_its_own_keeps_its_name():
    is_test = np.array([False, False, True])
    split = partition.split_as_given(
        "bob", np.arange(3), is_test, np.random.RandomState(0), validation_fraction=0.0
    )
    assert split.name == "bob"
    assert split.test.tolist() == [2]
