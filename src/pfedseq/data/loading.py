"""From a `[data]` section and a seed to clients with examples: the one entrance for engines."""

import numpy as np
from numpy.typing import NDArray

from pfedseq.data import digits, partition
from pfedseq.data.config import DataConfig
from pfedseq.data.dataset import ClientData, ExampleSet, FederatedData, ImageSet, all_images
from pfedseq.data.image_store import Report, silent
from pfedseq.data.preparing import prepared_images
from pfedseq.data.text import load_texts
from pfedseq.errors import InputError
from pfedseq.words import some


def load_data(config: DataConfig, seed: int, report: Report = silent) -> FederatedData:
    """The clients of a run; the same config and seed give the same clients and pixels."""
    if not 0 <= seed < 2**32:
        raise InputError(f"the seed is {seed}, but must be between 0 and 2**32 - 1")
    if config.name == "text":
        texts = load_texts(config)
        return FederatedData(texts, deal(texts, config, seed))
    images = load_images(config, report)
    clients = deal(images, config, seed)
    if config.scanners:
        images = digits.scan_for_clients(
            images, clients, _partition_seed(config, seed), config.scanner_turn
        )
    return FederatedData(images, clients)


def load_images(config: DataConfig, report: Report = silent) -> ImageSet:
    """The images of a data set at the wanted size, before they are dealt to clients."""
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
    partition.check_sizes(
        clients,
        min_samples=config.min_samples or 1,
        validation_fraction=config.validation_fraction,
    )
    return tuple(clients)


def remarks(data: FederatedData) -> tuple[str, ...]:
    """What is strange about a division, for the user."""
    labels = data.examples.labels
    lonely = [c.name for c in data.clients if len(np.unique(labels[all_images(c)])) == 1]
    missing = [
        name
        for number, name in enumerate(data.examples.class_names)
        if not (labels == number).any()
    ]
    said = []
    if missing:
        which = "class" if len(missing) == 1 else "classes"
        said.append(f"there are no {data.examples.unit}s of the {which} {some(missing)}")
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
    assert config.num_clients is not None  # the config's validator sees to it
    match config.partition:
        case "dirichlet":
            parts = partition.dirichlet(
                examples.labels,
                config.num_clients,
                config.alpha,
                rng,
                balanced=config.balanced,
                min_samples=config.min_samples,
            )
        case "pathological":
            parts = partition.pathological(
                examples.labels, config.num_clients, config.classes_per_client, rng
            )
        case "iid":
            parts = partition.iid(examples.labels, config.num_clients, rng)
    return [(f"{number:02d}", part) for number, part in enumerate(parts)]


def _owner_clients(
    examples: ExampleSet, config: DataConfig, rng: np.random.RandomState
) -> list[tuple[str, NDArray[np.int64]]]:
    if examples.owners is None:
        raise InputError(
            f"{examples.name} does not say whose its {examples.unit}s are: choose another "
            "data.partition than owners"
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
    if not config.keep_test_split:
        return partition.split_at_random(
            name,
            members,
            rng,
            train_fraction=config.train_fraction,
            validation_fraction=config.validation_fraction,
        )
    if examples.is_test is None:
        raise InputError(
            f"{examples.name} has no test {examples.unit}s of its own to keep: "
            "set data.keep_test_split = false"
        )
    return partition.split_as_given(
        name, members, examples.is_test, rng, validation_fraction=config.validation_fraction
    )
