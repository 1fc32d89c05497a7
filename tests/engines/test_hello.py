"""Before round 1: counts and class names come from the clients, and nothing else does."""

import pytest
import torch

from pfedseq.engines.hello import introduce
from pfedseq.engines.local import LocalClients
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.federation import Hello, Reply
from pfedseq.methods import METHODS
from tests.toys import quadratic_federation, random_centers

HELLO = Hello(5, 2, 3, ("Katze", "犬", 'a "quoted" name'))


def clients_of(engine=LocalClients):
    method = METHODS["fedavg"]
    sites = quadratic_federation(random_centers(3), (4, 2, 3))
    return engine(method.client, method.config(), sites, threads=2)


@pytest.mark.parametrize("engine", [LocalClients, WireClients])
def test_every_client_speaks_for_itself(engine):
    hellos = introduce(clients_of(engine), range(3))
    assert [hello.train_examples for hello in hellos] == [4, 2, 3]
    assert {hello.class_names for hello in hellos} == {("class 0", "class 1", "class 2")}


def test_a_hello_survives_being_a_message():
    assert Hello.of(HELLO.reply()) == HELLO


@pytest.mark.parametrize(
    "broken",
    [
        Reply(),
        Reply(HELLO.reply().tensors),
        Reply(metrics=HELLO.reply().metrics),
        Reply({"class_names": torch.tensor([1, 2])}, HELLO.reply().metrics),
        Reply({"class_names": torch.tensor([300.5])}, HELLO.reply().metrics),
        Reply({"class_names": torch.tensor(list(b"[1]"))}, HELLO.reply().metrics),
        Reply({"class_names": torch.tensor(list(b"3"))}, HELLO.reply().metrics),
        Reply({"class_names": torch.tensor(list(b"[" * 100_000))}, HELLO.reply().metrics),
        Reply({"class_names": torch.zeros(10**7 + 1)}, HELLO.reply().metrics),
        Reply(HELLO.reply().tensors, HELLO.reply().metrics | {"test_examples": -1}),
        Reply(HELLO.reply().tensors, HELLO.reply().metrics | {"test_examples": float("nan")}),
        Reply(HELLO.reply().tensors, HELLO.reply().metrics | {"test_examples": float("inf")}),
        Reply(HELLO.reply().tensors, HELLO.reply().metrics | {"train_examples": 2e15}),
    ],
)
def test_a_broken_hello_gets_a_sentence(broken):
    with pytest.raises(InputError, match="hello is not readable"):
        Hello.of(broken)


class Changed:
    """Clients one of whose hellos is taken away or replaced."""

    def __init__(self, replies):
        self.replies = replies

    def call(self, step, t, down):
        assert (step, t) == ("hello", 0)
        assert not any(down.values()), "nothing is sent down with it"
        return self.replies


def test_silence_is_named():
    with pytest.raises(InputError, match="received no hello from client 1"):
        introduce(Changed({0: HELLO.reply()}), range(2))


@pytest.mark.parametrize(
    ("names", "said"), [(("Katze", "犬"), "quoted"), (HELLO.class_names[::-1], "their order")]
)
def test_other_classes_are_refused(names, said):
    other = Hello(1, 1, 1, names).reply()
    with pytest.raises(InputError, match=f"clients 0 and 1.*{said}"):
        introduce(Changed({0: HELLO.reply(), 1: other}), range(2))
