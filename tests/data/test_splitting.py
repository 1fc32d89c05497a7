"""Stratified splits: nothing lost or doubled, every class on both sides, units whole."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfedseq.data import DataConfig
from pfedseq.data.dataset import TextSet
from pfedseq.data.loading import divide
from pfedseq.data.splitting import join_units, split_stratified
from pfedseq.errors import InputError

FRACTIONS = st.floats(0.05, 0.95)
LABELS = st.lists(st.integers(0, 5), min_size=3, max_size=60)


def split(labels, units=None, train=0.75, validation=0.2, seed=0):
    labels = np.array(labels, dtype=np.int64)
    return split_stratified(
        "a",
        np.arange(len(labels)),
        labels,
        np.random.RandomState(seed),
        train_fraction=train,
        validation_fraction=validation,
        units=None if units is None else np.array(units, dtype=np.int64),
    )


def assert_complete(found, number):
    everything = np.concatenate([found.train, found.validation, found.test])
    assert sorted(everything.tolist()) == list(range(number))
    assert min(len(found.train), len(found.test), len(found.validation)) >= 1


@settings(max_examples=100, deadline=None)
@given(LABELS, FRACTIONS, FRACTIONS, st.integers(0, 99))
def test_every_class_of_two_is_trained_and_tested_on(labels, train, validation, seed):
    found = split(labels, None, train, validation, seed)
    assert_complete(found, len(labels))
    labels = np.array(labels)
    for label, number in zip(*np.unique(labels, return_counts=True), strict=True):
        if number >= 2 and len(np.unique(labels)) < len(labels):
            assert label in labels[found.test]
            assert label in labels[np.concatenate([found.train, found.validation])]
        if number >= 3:
            assert label in labels[found.train]


@settings(max_examples=60, deadline=None)
@given(LABELS, FRACTIONS, st.integers(0, 99))
def test_a_class_is_tested_in_proportion(labels, train, seed):
    found = split(labels, None, train, 0.2, seed)
    labels = np.array(labels)
    target = len(labels) - np.floor(train * len(labels))
    for label, number in zip(*np.unique(labels, return_counts=True), strict=True):
        share, got = target * number / len(labels), (labels[found.test] == label).sum()
        if number > 1:
            assert min(np.floor(share), max(1, number - 2)) <= got <= max(1, np.ceil(share))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 8)), min_size=3, max_size=60),
    FRACTIONS,
    st.integers(0, 99),
)
def test_groups_are_whole(rows, train, seed):
    labels, groups = np.array(rows).T
    found = split(labels, groups, train, 0.2, seed)
    parts = [set(groups[part].tolist()) for part in (found.train, found.validation, found.test)]
    assert sum(map(len, parts)) == len(set.union(*parts)), "a group lies in two splits"
    everything = np.concatenate([found.train, found.validation, found.test])
    assert sorted(everything.tolist()) == list(range(len(rows)))
    if len(set(groups.tolist())) >= 3:
        assert all(parts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 6), min_size=3, max_size=8), min_size=1, max_size=4),
    FRACTIONS,
    st.integers(0, 99),
)
def test_groups_of_one_class_leave_every_class_on_both_sides(sizes, train, seed):
    """`sizes[c]` are the sizes of class c's groups."""
    labels, groups = [], []
    for label, of_class in enumerate(sizes):
        for size in of_class:
            groups += [max(groups, default=-1) + 1] * size
            labels += [label] * size
    found = split(labels, groups, train, 0.2, seed)
    labels = np.array(labels)
    for part in (found.train, found.test):
        assert set(labels[part].tolist()) == set(range(len(sizes)))


def test_a_minority_is_tested_on():
    """The site of 100 : 5 images that reported 100 % on a test set of one class."""
    found = split([0] * 100 + [1] * 5)
    labels = np.array([0] * 100 + [1] * 5)
    assert np.bincount(labels[found.test]).tolist() == [25, 2] or np.bincount(
        labels[found.test]
    ).tolist() == [26, 1]
    assert len(found.test) == 27
    assert len(found.validation) == 16


def test_a_class_in_one_group_does_not_make_others_pay():
    """Class 0 is one group of 90, which cannot be split: class 1 is still mostly trained on."""
    found = split([0] * 90 + [1] * 10, [0] * 90 + list(range(1, 11)))
    labels = np.array([0] * 90 + [1] * 10)
    assert np.bincount(labels[found.test], minlength=2).tolist() == [0, 3]


def test_seeds_decide_and_repeat():
    labels = [0, 1] * 20
    same, again, other = split(labels), split(labels), split(labels, seed=1)
    assert same.test.tolist() == again.test.tolist() != other.test.tolist()


def test_joined_units_tear_nothing_apart():
    groups, copies = np.array([0, 0, 1, 2, 3]), np.array([5, 6, 6, 7, 8])
    joined = join_units(groups, copies)
    assert len({*joined[:3].tolist()}) == 1
    assert len({*joined.tolist()}) == 3


# --- from a config --------------------------------------------------------------------------


def texts(labels, owners, groups=None, hashes=None, **more):
    number = len(labels)
    return TextSet(
        name="notes",
        texts=tuple(f"text {i}" for i in range(number)),
        labels=np.array(labels, dtype=np.int64),
        class_names=tuple(f"class {c}" for c in range(max(labels) + 1)),
        owners=np.array(owners, dtype=np.int64),
        owner_names=tuple("abcdef"[: max(owners) + 1]),
        is_test=more.pop("is_test", None),
        fingerprint="",
        groups=None if groups is None else np.array(groups),
        hashes=hashes,
        **more,
    )


def config(**values):
    return DataConfig(name="text", source="notes.csv", **values)


def test_own_data_are_stratified_and_published_data_are_not():
    assert (config().split, config().validation_fraction) == ("stratified", 0.2)
    assert DataConfig(name="folder", source="x").split == "stratified"
    assert DataConfig(name="hub", source="x/y").split == "stratified"
    for name in ("digits", "cifar100", "omniglot", "pacs", "domainnet"):
        assert (DataConfig(name=name).split, DataConfig(name=name).validation_fraction) == (
            "random",
            0.1,
        )


def test_a_client_too_small_to_split_is_left_out_and_named():
    data = divide(texts([0, 1] * 6 + [0, 1], [0] * 12 + [1] * 2), config(), 0)
    assert [client.name for client in data.clients] == ["a"]
    assert data.notes == (
        "left out the client b (2 texts): too few for training, validation and test",
    )
    with pytest.raises(InputError, match="client b has 2 examples"):
        divide(texts([0, 1] * 6 + [0, 1], [0] * 12 + [1] * 2), config(split="random"), 0)
    with pytest.raises(InputError, match="client a has 2 examples"):
        divide(texts([0, 1], [0, 0]), config(), 0)


def test_copies_stay_on_one_side_and_are_noted():
    hashes = np.arange(40, dtype=np.uint64).repeat(2).reshape(40, 2)
    hashes[[0, 7, 13]] = 99  # three copies at client a
    hashes[[3, 30]] = 98  # one text at both
    hashes[20:30, 1] = 97  # alike, not the same
    owners = [0] * 20 + [1] * 20
    for seed in range(8):
        data = divide(texts([0, 1] * 20, owners, hashes=hashes), config(), seed)
        first = data.clients[0]
        sides = [
            {0, 7, 13} & {*part.tolist()} for part in (first.train, first.validation, first.test)
        ]
        assert sorted(map(len, sides)) == [0, 0, 3]
        assert data.notes[0].startswith("2 texts are copies of another one of the same client")
        assert data.notes[1].startswith("1 text is held by several clients (a, b)")
        assert data.notes[2].startswith("2 texts occur with different classes (a, b)")
        assert "almost like a training text of the same client (b)" in data.notes[3]


def test_groups_are_dealt_and_split_whole():
    groups = np.repeat(np.arange(30), 4)
    rows = texts([0, 0, 1, 1] * 30, [0] * 120, groups=groups)
    for partition in ("iid", "dirichlet"):
        data = divide(rows, config(partition=partition, num_clients=3, alpha=1.0), 0)
        parts = [
            {*groups[part].tolist()}
            for client in data.clients
            for part in (client.train, client.validation, client.test)
        ]
        assert sum(map(len, parts)) == 30, "a group lies in two clients or splits"
    cut = divide(rows, config(split_owners=2), 0)
    assert [client.name for client in cut.clients] == ["a-0", "a-1"]
    parts = [{*groups[np.concatenate([c.train, c.validation, c.test])]} for c in cut.clients]
    assert not parts[0] & parts[1]


def test_the_sources_own_splits_are_kept():
    is_test, is_validation = np.zeros(20, dtype=bool), np.zeros(20, dtype=bool)
    is_test[15:], is_validation[10:15] = True, True
    given = texts([0, 1] * 10, [0] * 20, is_test=is_test, is_validation=is_validation)
    (client,) = divide(given, config(keep_test_split=True), 0).clients
    assert client.test.tolist() == list(range(15, 20))
    assert client.validation.tolist() == list(range(10, 15))
    drawn = texts([0, 1] * 10, [0] * 20, is_test=is_test)
    (client,) = divide(drawn, config(keep_test_split=True), 0).clients
    assert client.test.tolist() == list(range(15, 20))
    assert len(client.validation) == 3
    assert set((client.validation % 2).tolist()) == {0, 1}


def test_random_splits_and_groups_are_refused_together():
    with pytest.raises(ValueError, match="would split groups"):
        config(split="random", group_column="patient")
    with pytest.raises(ValueError, match="would split groups"):
        DataConfig(name="folder", source="x", layout="owner/group/class", split="random")
