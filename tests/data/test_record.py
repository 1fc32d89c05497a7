"""What partition.json keeps of the data, and how a change is named."""

from dataclasses import replace

import numpy as np
import pytest

from pfedseq.data import DataConfig, load_data
from pfedseq.data.loading import remarks
from pfedseq.data.record import data_record, difference

CONFIG = DataConfig(partition="pathological", num_clients=5)


@pytest.fixture(scope="module")
def skewed():
    return load_data(CONFIG, seed=2)


def test_the_record_names_every_image_and_is_a_function_of_config_and_seed(skewed):
    record = data_record(skewed)
    assert (record["data"], record["num_images"]) == ("digits", 1797)
    for written, client in zip(record["clients"], skewed.clients, strict=True):
        assert written["train"] == client.train.tolist()
        assert written["validation"] == client.validation.tolist()
        assert written["test"] == client.test.tolist()
    assert data_record(load_data(CONFIG, 2)) == record
    assert difference(record, data_record(load_data(CONFIG, 2))) is None


def test_every_change_is_named(skewed):
    then = data_record(skewed)
    images, clients = skewed.examples, skewed.clients

    def now(**changes):
        return data_record(replace(skewed, **changes))

    fewer = replace(images, labels=images.labels[:1700])
    assert difference(then, now(examples=fewer, clients=())) == "1,797 images then, 1,700 now"
    labels = images.labels.copy()
    labels[7] += 1
    assert difference(then, now(examples=replace(images, labels=labels))) == (
        "some images have a different label"
    )
    repainted = replace(images, fingerprint="another")
    assert difference(then, now(examples=repainted)) == "some images have changed"
    renamed = replace(images, class_names=("zero", *images.class_names[1:]))
    assert difference(then, now(examples=renamed)) == "the classes have different names"
    assert difference(then, now(clients=clients[1:])) == "the client 00 is gone"
    more = (*clients, replace(clients[0], name="Ann"))
    assert difference(then, now(clients=more)) == "the client Ann is new"
    swapped = (replace(clients[0], test=clients[0].test[::-1]), *clients[1:])
    assert difference(then, now(clients=swapped)) == "the client 00 has different test images"
    assert difference(then, now(clients=swapped), division=False) is None


def test_clients_of_one_class_and_classes_without_images_are_remarked(skewed):
    assert remarks(skewed) == ()
    one = load_data(DataConfig(partition="pathological", num_clients=10, classes_per_client=1), 0)
    names = "00, 01, 02, 03, 04 and 5 more"
    assert remarks(one) == (f"the clients {names} have images of one class only",)
    labels = np.where(skewed.examples.labels == 3, 4, skewed.examples.labels)
    assert "no client has images of the class 3" in remarks(
        replace(skewed, examples=replace(skewed.examples, labels=labels))
    )
