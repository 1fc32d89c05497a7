"""All methods behind Flower's messages give the bits that they give in one process."""

import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.deployment.envelope import Envelope
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.methods import METHODS
from tests.deployment.grid import InProcessGrid, connect, federation
from tests.every_method import OPTIONS, every_method
from tests.toys import make_setup, quadratic_federation, random_centers

CENTERS, SIZES, ROUNDS = random_centers(3, adapter_dim=10), (4, 2, 3), 4
payloads = pytest.mark.parametrize("payload", ["float32", "int8"])
"""With int8, what was rounded off must be at the site as exactly as a head."""


def run(name, clients_of):
    """Scores of every round, and the personal models at the sites."""
    method = METHODS[name]
    config = method.config(lr=0.1, **OPTIONS.get(name, {}))
    toys = quadratic_federation(CENTERS, SIZES, num_batches=2)
    clients = clients_of(method, config, toys)
    server = method.server(config, make_setup(CENTERS, SIZES, ROUNDS))
    scores, costs = [], []

    def keep(outcome):
        costs.append((outcome.bytes_up, outcome.bytes_down))
        scores.append(
            {
                i: {k: v for k, v in m.items() if not k.endswith("_seconds")}
                for i, m in outcome.evaluated.items()
            }
        )

    run_rounds(server, clients, range(1, ROUNDS + 1), keep)
    clients.call("export", ROUNDS, {i: server.payload(i) for i in clients.ids})
    return scores, costs, [toy.saved[-1] for toy in toys]


def in_process(payload):
    def clients_of(method, config, toys):
        return LocalClients(method.client, config, toys, payload=payload)

    return clients_of


@every_method
@payloads
def test_bits_are_those_of_the_engine_in_process(name, payload, tmp_path):
    def on_flower(method, config, toys):
        sites = federation(tmp_path, method, config, toys, payload=payload)
        return connect(InProcessGrid(sites), 3)

    here = run(name, in_process(payload))
    there = run(name, on_flower)
    assert there[:2] == here[:2]
    for one, other in zip(here[2], there[2], strict=True):
        assert torch.equal(one.adapter, other.adapter)
        assert torch.equal(one.head, other.head)


@every_method
@payloads
def test_lost_replies_and_repeated_messages_change_no_bit(name, payload, tmp_path):
    """Nodes die with the reply in hand, or before they hear; clients crash; all come back."""
    calm = run(name, in_process(payload))

    def restless(method, config, toys):
        sites = federation(tmp_path, method, config, toys, payload=payload)
        clients = connect(InProcessGrid(sites), 3, seconds=30.0)
        sites[0].faults = [None, "lost", "crash", None, "lost"]
        sites[2].faults = ["before", None, None, "lost"]
        look = clients.roll.look

        def returning():
            for k, site in enumerate(sites):
                if not site.online:
                    site.restart(number=1000 * site.starts + k)
            return look()

        clients.roll.look = returning
        return clients

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pfedseq.deployment.clients.LOOK_SECONDS", 0.0)
        storm = run(name, restless)
    assert storm[0] == calm[0]
    for one, other in zip(calm[2], storm[2], strict=True):
        assert torch.equal(one.adapter, other.adapter)
        assert torch.equal(one.head, other.head)


class CountingGrid(InProcessGrid):
    """Adds up the payloads that pass in training, without the headers that name the tensors."""

    down = up = 0

    def push_messages(self, messages):
        if training := messages[0].metadata.message_type == "train":
            self.down += sum(map(data_bytes, messages))
        ids = super().push_messages(messages)
        if training:
            self.up += sum(data_bytes(self.replies[name]) for name in ids)
        return ids


def data_bytes(message):
    payload = Envelope.of_records(message.content).payload
    return len(payload) - 8 - int.from_bytes(payload[:8], "little")


@pytest.mark.parametrize("payload", ["float32", "float16", "int8"])
@pytest.mark.parametrize("name", ["fedavg", "pfedseq", "pefll"])
def test_the_ledger_is_the_length_of_what_was_sent(name, payload, tmp_path):
    grids = []

    def on_flower(method, config, toys):
        grids.append(CountingGrid(federation(tmp_path, method, config, toys, payload=payload)))
        return connect(grids[0], 3)

    _, costs, _ = run(name, on_flower)
    assert grids[0].up == sum(up for up, _ in costs) > 0
    assert grids[0].down == sum(down for _, down in costs)
