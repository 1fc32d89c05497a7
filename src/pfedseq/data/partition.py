"""Partitions of labelled examples among clients, and each client's splits.

Every function draws from a `numpy.random.RandomState`. The legacy generator is deliberate: NumPy
has frozen its streams, so a seed gives the same partition on every version, and it is the
generator of PFLlib (TsingZ0/PFLlib, dataset_utils.py), whose partition `dirichlet(...,
balanced=True)` reproduces index by index.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pfedseq.data.dataset import ClientData
from pfedseq.errors import InputError

Indices = NDArray[np.int64]
MAX_DRAWS = 1000
"""Dirichlet draws tried before giving up."""


def pfllib_min_samples(num_images: int, num_clients: int) -> int:
    """PFLlib's smallest client: a test batch of 10 at a test share of 1/4, or half an equal share.

    int(min(10 / 0.25, num_images / num_clients / 2)), but never less than one image.
    """
    return max(1, int(min(40, num_images / num_clients / 2)))


def dirichlet(
    labels: NDArray[np.int64],
    num_clients: int,
    alpha: float,
    rng: np.random.RandomState,
    *,
    balanced: bool,
    min_samples: int | None = None,
) -> list[Indices]:
    """Label skew: the images of each class are cut in proportions q ~ Dir(alpha, ..., alpha).

    With `balanced`, as in PFLlib, the proportion of every client that already has at least
    n / N images is set to zero and q is normalised again before the cut. The whole draw is
    repeated until the smallest client has `min_samples` images (default: PFLlib's rule).
    """
    _check_client_count(len(labels), num_clients)
    if min_samples is None:
        min_samples = pfllib_min_samples(len(labels), num_clients)
    if num_clients * min_samples > len(labels):
        raise InputError(
            f"{len(labels)} examples cannot give {num_clients} clients at least {min_samples} "
            "each: lower data.num_clients or data.min_samples"
        )
    best = 0
    for _ in range(MAX_DRAWS):
        drawn = _draw_dirichlet(labels, num_clients, alpha, rng, balanced)
        best = max(best, min(len(part) for part in drawn))
        if best >= min_samples:
            return drawn
    raise InputError(
        f"none of {MAX_DRAWS} Dirichlet({alpha:g}) draws gave each of {num_clients} clients at "
        f"least {min_samples} of {len(labels)} examples (the smallest client of the best draw has "
        f"{best}): lower data.num_clients or data.min_samples, or raise data.alpha"
    )


def _draw_dirichlet(
    labels: NDArray[np.int64],
    num_clients: int,
    alpha: float,
    rng: np.random.RandomState,
    balanced: bool,
) -> list[Indices]:
    """One draw. The order of the generator's calls (shuffle, then Dirichlet) is PFLlib's."""
    equal_share = len(labels) / num_clients
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    sizes = np.zeros(num_clients, dtype=np.int64)
    # PFLlib walks 0 ... num_classes - 1; a class without images would consume a draw there, but
    # its data sets have none, so walking the classes that occur is the same.
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rng.shuffle(members)
        shares = rng.dirichlet(np.repeat(alpha, num_clients))
        if balanced:
            open_to_more = sizes < equal_share
            shares = shares * open_to_more
            if not shares.sum() > 0:  # all mass fell on full clients: share the class evenly
                shares = open_to_more.astype(np.float64)
            shares = shares / shares.sum()
        cuts = (np.cumsum(shares) * len(members)).astype(np.int64)[:-1]
        for client, part in enumerate(np.split(members, cuts)):
            parts[client].append(part)
            sizes[client] += len(part)
    return [np.concatenate(pieces) for pieces in parts]


def iid(labels: NDArray[np.int64], num_clients: int, rng: np.random.RandomState) -> list[Indices]:
    """Deal each class's shuffled examples in turn; sizes and class counts differ by at most one."""
    _check_client_count(len(labels), num_clients)
    by_class = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rng.shuffle(members)
        by_class.append(members)
    deck = np.concatenate(by_class)
    return [deck[client::num_clients] for client in range(num_clients)]


def pathological(
    labels: NDArray[np.int64],
    num_clients: int,
    classes_per_client: int,
    rng: np.random.RandomState,
) -> list[Indices]:
    """Each client holds exactly k classes; a class is shared evenly by the clients that hold it.

    Client i takes places i*k ... i*k + k - 1 of a shuffled circle of classes, so that the numbers
    of holders of any two classes differ by at most one.
    """
    _check_client_count(len(labels), num_clients)
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        raise InputError(
            f"data.classes_per_client = {classes_per_client}, but there are only "
            f"{len(classes)} classes"
        )
    if num_clients * classes_per_client < len(classes):
        raise InputError(
            f"{num_clients} clients of {classes_per_client} classes each cannot hold all "
            f"{len(classes)} classes: raise data.classes_per_client to at least "
            f"{-(-len(classes) // num_clients)}"
        )
    rng.shuffle(classes)
    holders: dict[int, list[int]] = {int(label): [] for label in classes}
    for place in range(num_clients * classes_per_client):
        holders[int(classes[place % len(classes)])].append(place // classes_per_client)
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    for label, clients in holders.items():
        members = np.flatnonzero(labels == label)
        if len(members) < len(clients):
            raise InputError(
                f"class {label} has {len(members)} examples for the {len(clients)} clients that "
                "would hold it: lower data.num_clients or data.classes_per_client"
            )
        rng.shuffle(members)
        for client, part in zip(clients, np.array_split(members, len(clients)), strict=True):
            parts[client].append(part)
    return [np.concatenate(pieces) for pieces in parts]


def by_owner(
    owners: NDArray[np.int64],
    rng: np.random.RandomState,
    *,
    num_owners: int | None = None,
    pieces: int = 1,
    groups: NDArray[np.int64] | None = None,
) -> list[tuple[int, int, Indices]]:
    """The natural clients, as (owner, piece, images), in order of owner number.

    `num_owners` keeps the owners with the most images (the lower number first among equals);
    `pieces` is the number of clients that every owner's shuffled images are divided into, equal in
    images or, with `groups`, in groups.
    """
    present, counts = np.unique(owners, return_counts=True)
    if num_owners is not None:
        if num_owners > len(present):
            raise InputError(
                f"the data has {len(present)} owners, fewer than the {num_owners} asked for: "
                "lower data.num_clients or raise data.split_owners"
            )
        largest = np.argsort(-counts, kind="stable")[:num_owners]
        present = np.sort(present[largest])
    divided = []
    for owner in present:
        members = np.flatnonzero(owners == owner)
        if pieces > 1 and groups is not None:
            shuffled = rng.permutation(np.unique(groups[members]))
            parts = [
                members[np.isin(groups[members], part)] for part in np.array_split(shuffled, pieces)
            ]
        else:
            if pieces > 1:
                rng.shuffle(members)
            parts = np.array_split(members, pieces)
        divided += [(int(owner), piece, part) for piece, part in enumerate(parts)]
    return divided


def split_at_random(
    name: str,
    images: Indices,
    rng: np.random.RandomState,
    *,
    train_fraction: float,
    validation_fraction: float,
) -> ClientData:
    """Unstratified train/test split of one client, as in PFLlib, then validation out of train.

    One permutation is drawn: its first n - floor(train_fraction * n) entries are the test images,
    and the last ones, a share `validation_fraction` of the rest, are for validation.
    """
    order = images[rng.permutation(len(images))]
    num_test = len(images) - int(np.floor(train_fraction * len(images)))
    return _hold_out_validation(name, order[num_test:], order[:num_test], validation_fraction)


def split_as_given(
    name: str,
    images: Indices,
    is_test: NDArray[np.bool_],
    rng: np.random.RandomState,
    *,
    validation_fraction: float,
) -> ClientData:
    """Keep the source's own test images; validation is drawn from its training examples."""
    test, train = images[is_test[images]], images[~is_test[images]]
    order = train[rng.permutation(len(train))]
    return _hold_out_validation(name, order, test, validation_fraction)


def _hold_out_validation(name: str, train: Indices, test: Indices, fraction: float) -> ClientData:
    """Take the last `fraction` of the training examples, and at least one, unless it is zero."""
    held_out = max(1, round(fraction * len(train))) if fraction > 0 else 0
    kept = max(len(train) - held_out, 0)
    return ClientData(name=name, train=train[:kept], validation=train[kept:], test=test)


def check_sizes(
    clients: Sequence[ClientData], *, min_samples: int, validation_fraction: float
) -> None:
    """Refuse a client that is too small, or whose training, validation or test split is empty."""
    for client in clients:
        parts = {"training": client.train, "test": client.test}
        if validation_fraction > 0:
            parts["validation"] = client.validation
        empty = [part for part, images in parts.items() if len(images) == 0]
        total = len(client.train) + len(client.validation) + len(client.test)
        if empty:
            raise InputError(
                f"client {client.name} has {total} examples, which leaves none for "
                f"{' or '.join(empty)}: use fewer clients, or change data.train_fraction or "
                "data.validation_fraction"
            )
        if total < min_samples:
            raise InputError(
                f"client {client.name} has {total} examples, fewer than "
                f"data.min_samples = {min_samples}"
            )


def _check_client_count(num_images: int, num_clients: int) -> None:
    if num_clients > num_images:
        raise InputError(
            f"{num_clients} clients cannot share {num_images} examples: lower data.num_clients"
        )
