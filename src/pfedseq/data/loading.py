"""Load the clients' examples for a `[data]` section and a seed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pfedseq.data import arrays, digits, partition, splitting
from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ClientData, ExampleSet, FederatedData, ImageSet, all_images
from pfedseq.data.dialogue import load_dialogues
from pfedseq.data.duplicates import copies, same_numbers
from pfedseq.data.image_store import Report, silent
from pfedseq.data.lab_notes import lab_notes
from pfedseq.data.preparing import prepared_images
from pfedseq.data.splitting import join_units
from pfedseq.data.text import load_texts
from pfedseq.errors import InputError
from pfedseq.words import count, some


def load_data(
    config: DataConfig, seed: int, report: Report = silent, given: arrays.Given | None = None
) -> FederatedData:
    """The clients of a run; the same config and seed give the same clients and pixels.

    `given` are examples passed from Python (`data/arrays.py`).
    """
    if not 0 <= seed < 2**32:
        raise InputError(f"the seed is {seed}, but must be between 0 and 2**32 - 1")
    if given is not None:
        return divide(arrays.examples_of(given, config), config, seed)
    if arrays.are_given(config):
        raise InputError(
            "the run's data were passed from Python and are not stored: pass them again, as in "
            "pfedseq.resume(out, data=...) or pfedseq.run(config, out, data=...)"
        )
    if config.name == "text":
        return divide(load_texts(config), config, seed)
    if config.name == "dialogue":
        return divide(load_dialogues(config), config, seed)
    if config.name == "lab_notes":
        return divide(lab_notes(), config, seed)
    images = load_images(config, report)
    if not config.scanners:
        return divide(images, config, seed)
    clients = deal(images, config, seed)
    scanned = digits.scan_for_clients(
        images, clients, _partition_seed(config, seed), config.scanner_turn, config.num_scanners
    )
    return FederatedData(scanned, clients)


def divide(examples: ExampleSet, config: DataConfig, seed: int) -> FederatedData:
    """Partition the examples and collect remarks about the result."""
    clients = deal(examples, config, seed)
    if config.split == "random":
        return FederatedData(examples, clients)
    validated = config.validation_fraction > 0
    whole, small = leave_out_unsplit(clients, validated=validated, unit=examples.unit)
    partition.check_sizes(
        whole,
        min_samples=config.min_samples or 1,
        validation_fraction=config.validation_fraction,
    )
    notes = [*small, *copies(examples, whole)]
    return FederatedData(examples, whole, tuple(notes))


def load_images(config: DataConfig, report: Report = silent) -> ImageSet:
    """The images of a data set at the requested size, before partitioning."""
    if config.name == "digits":
        return digits.digits_images(config.side)
    return prepared_images(config, report)


def deal(examples: ExampleSet, config: DataConfig, seed: int) -> tuple[ClientData, ...]:
    """Divide the examples among clients and split each client's into train, validation and test.

    One generator serves the partition and then, client by client, the splits: PFLlib's order.
    """
    rng = np.random.RandomState(_partition_seed(config, seed))
    clients = []
    for name, members in _partition(examples, config, rng):
        limit = config.max_images_per_client
        if limit is not None and len(members) > limit:
            members = rng.permutation(members)[:limit]
        clients.append(_split(name, members, examples, config, rng))
    if config.split == "random":
        partition.check_sizes(
            clients,
            min_samples=config.min_samples or 1,
            validation_fraction=config.validation_fraction,
        )
    return tuple(clients)


def leave_out_unsplit(
    clients: Sequence[ClientData], *, validated: bool, unit: str = "example"
) -> tuple[tuple[ClientData, ...], list[str]]:
    """The clients with enough examples for all splits, and a note about the others.

    If none has enough, all are kept, so that the error names a client.
    """
    whole = tuple(
        c for c in clients if len(c.train) and len(c.test) and (len(c.validation) or not validated)
    )
    kept = {c.name for c in whole}
    names = [f"{c.name} ({count(len(all_images(c)), unit)})" for c in clients if c.name not in kept]
    if not names or not whole:
        return tuple(clients), []
    which = "client" if len(names) == 1 else "clients"
    splits = "training, validation and test" if validated else "training and test"
    return whole, [f"left out the {which} {some(names)}: too few for {splits}"]


def remarks(data: FederatedData) -> tuple[str, ...]:
    """Remarks about unusual properties of a division."""
    labels = data.examples.labels
    lonely = [
        c.name
        for c in data.clients
        if data.examples.class_names and len(np.unique(labels[all_images(c)])) == 1
    ]
    missing = [
        name
        for number, name in enumerate(data.examples.class_names)
        if not (labels == number).any()
    ]
    said = list(data.notes)
    if missing:
        which = "class" if len(missing) == 1 else "classes"
        said.append(f"no client has {data.examples.unit}s of the {which} {some(missing)}")
    if lonely:
        which = "client" if len(lonely) == 1 else "clients"
        has = "has" if len(lonely) == 1 else "have"
        said.append(f"the {which} {some(lonely)} {has} {data.examples.unit}s of one class only")
    return tuple(said)


def _partition_seed(config: DataConfig, seed: int) -> int:
    return seed if config.partition_seed is None else config.partition_seed


def _partition(
    examples: ExampleSet, config: DataConfig, rng: np.random.RandomState
) -> list[tuple[str, NDArray[np.int64]]]:
    """Named clients and the indices of their examples."""
    if config.partition == "owners":
        return _owner_clients(examples, config, rng)
    assert config.num_clients is not None  # ensured by the config's validator
    if examples.groups is None:
        parts = _dealt(examples.labels, config, rng)
    else:  # whole groups are assigned, each as one example of its most common class
        _, group_of = np.unique(examples.groups, return_inverse=True)
        counts = np.zeros((group_of.max() + 1, examples.labels.max() + 1), dtype=np.int64)
        np.add.at(counts, (group_of, examples.labels), 1)
        groups = _dealt(counts.argmax(axis=1), config, rng)
        parts = [np.flatnonzero(np.isin(group_of, part)) for part in groups]
    return [(f"{number:02d}", part) for number, part in enumerate(parts)]


def _dealt(
    labels: NDArray[np.int64], config: DataConfig, rng: np.random.RandomState
) -> list[NDArray[np.int64]]:
    """Partition labelled items among `num_clients` clients as configured."""
    assert config.num_clients is not None
    match config.partition:
        case "dirichlet":
            return partition.dirichlet(
                labels,
                config.num_clients,
                config.alpha,
                rng,
                balanced=config.balanced,
                min_samples=config.min_samples,
            )
        case "pathological":
            return partition.pathological(
                labels, config.num_clients, config.classes_per_client, rng
            )
        case "iid":
            return partition.iid(labels, config.num_clients, rng)
    raise AssertionError(config.partition)


def _owner_clients(
    examples: ExampleSet, config: DataConfig, rng: np.random.RandomState
) -> list[tuple[str, NDArray[np.int64]]]:
    if examples.owners is None:
        raise InputError(
            f"{examples.name} does not name the owners of its {examples.unit}s: choose a "
            "data.partition other than owners"
        )
    num_owners = config.num_clients
    if num_owners is not None and num_owners % config.split_owners:
        raise InputError(
            f"data.num_clients = {num_owners} is not a multiple of "
            f"data.split_owners = {config.split_owners}"
        )
    divided = partition.by_owner(
        examples.owners,
        rng,
        num_owners=None if num_owners is None else num_owners // config.split_owners,
        pieces=config.split_owners,
        groups=examples.groups,
    )
    return [
        (examples.owner_names[owner] + (f"-{piece}" if config.split_owners > 1 else ""), members)
        for owner, piece, members in divided
    ]


def _split(
    name: str,
    members: NDArray[np.int64],
    examples: ExampleSet,
    config: DataConfig,
    rng: np.random.RandomState,
) -> ClientData:
    keep = config.keep_test_split
    if keep is None:  # splits named by the user are used; the hub's are the publisher's
        named = (
            config.name in ("folder", "table", "text", "dialogue") and examples.is_test is not None
        )
        keep = named and bool(examples.is_test is not None and examples.is_test.any())
    if keep and examples.is_test is None:
        raise InputError(
            f"{examples.name} has no test {examples.unit}s to keep: "
            "set data.keep_test_split = false"
        )
    fraction = config.validation_fraction
    if config.split == "random":
        if keep:
            assert examples.is_test is not None
            return partition.split_as_given(
                name, members, examples.is_test, rng, validation_fraction=fraction
            )
        return partition.split_at_random(
            name, members, rng, train_fraction=config.train_fraction, validation_fraction=fraction
        )
    if not keep:
        return splitting.split_stratified(
            name,
            members,
            examples.labels,
            rng,
            train_fraction=config.train_fraction,
            validation_fraction=fraction,
            units=_units(examples, members),
        )
    assert examples.is_test is not None
    test, train = members[examples.is_test[members]], members[~examples.is_test[members]]
    if examples.is_validation is not None:
        held = examples.is_validation[train]
        return ClientData(name, train=train[~held], validation=train[held], test=test)
    return splitting.validation_of_training(
        name,
        train,
        test,
        examples.labels,
        rng,
        validation_fraction=fraction,
        units=_units(examples, train),
    )


def _units(examples: ExampleSet, members: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Units of a client's examples that stay together: groups, and copies of one example."""
    kept = [] if examples.groups is None else [examples.groups[members]]
    if examples.hashes is not None:
        kept.append(same_numbers(examples.hashes[members, 0]))
    return join_units(*kept) if kept else None
