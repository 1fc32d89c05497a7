"""Clients shared out among devices: each has its share of the work, and the server sees nothing."""

import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.engines.grouping import automatic_size, shares
from pfedseq.engines.local import LocalClients
from pfedseq.engines.rounds import run_rounds
from pfedseq.engines.wire import WireClients
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.runs.run import run
from pfedseq.runs.world import World
from pfedseq.workloads.devices import pick_devices
from tests.run_folder import lines
from tests.toys import make_setup, quadratic_federation, random_centers

CENTERS, SIZES = random_centers(5, adapter_dim=10), (8, 1, 2, 6, 3)


def test_every_device_gets_its_share_of_the_work():
    """Largest first to whoever has least: 9 | 7, then 5 to the second, 3 to the first, 1 there."""
    groups, work = [[0], [1], [2, 3], [4], [5]], {0: 5, 1: 9, 2: 4, 3: 3, 4: 1, 5: 3}
    assert shares(groups, work, 2) == [1, 0, 1, 0, 0]
    assert shares(groups, work, 1) == [0] * 5
    assert sorted(shares(groups, work, 5)) == [0, 1, 2, 3, 4]
    assert shares([[0], [1]], {0: 1, 1: 1}, 3) == [0, 1]
    assert shares([], {}, 2) == []


@dataclass
class Noting:
    """A site that notes the steps it is asked for, where there is more to do than to say hello."""

    site: object
    place: int
    noted: list = field(default_factory=list)

    def task(self, t, step):
        if step != "hello":
            self.noted.append((t, step))
        return self.site.task(t, step)


def shared_out(name, devices, together, engine=LocalClients):
    """What a method's evaluations say, and the sites of every device."""
    method = METHODS[name]
    config = method.config(lr=0.1)
    federation = quadratic_federation(CENTERS, SIZES, num_batches=2)
    places = [[Noting(site, place) for site in federation] for place in range(devices)]
    clients = engine(
        method.client, config, places[0], threads=2, clients_per_pass=together, copies=places[1:]
    )
    server, heard = method.server(config, make_setup(CENTERS, SIZES, 3)), []

    def after(outcome):
        assert list(outcome.evaluated) == list(range(5)), "in the clients' order"
        heard.append(
            [
                {name: value for name, value in own.items() if not name.endswith("_seconds")}
                for own in outcome.evaluated.values()
            ]
        )

    run_rounds(server, clients, range(1, 4), after)
    return heard, places


@pytest.mark.parametrize("engine", [LocalClients, WireClients])
@pytest.mark.parametrize("name", ["ditto", "pfedseq"])
def test_the_number_of_devices_changes_nothing(name, engine):
    alone, _ = shared_out(name, 1, 1)
    for devices in (2, 3, 7):
        assert shared_out(name, devices, 1, engine)[0] == alone
    assert shared_out(name, 2, 5)[0] == alone, "toys have nothing that would round differently"


def test_each_client_is_trained_on_one_device():
    """By twos: 0 | 1, 2 | 3, 4 have 8, 3 and 9 examples, so the last goes to the first device."""
    _, places = shared_out("fedavg", 2, 2)
    trained = [
        [i for i, site in enumerate(sites) if (2, "train") in site.noted] for sites in places
    ]
    # The first device's sites are also asked how much work there is.
    assert trained[1] == [0, 1, 2]
    counts = [site.noted.count((2, "train")) for site in places[0]]
    assert counts == [1, 1, 1, 2, 2]


def test_no_device_is_idle_where_a_group_is_large():
    """Five clients in one group are three and two on two devices."""
    _, places = shared_out("fedavg", 2, 5)
    assert sum((1, "train") in site.noted for site in places[1]) in (2, 3)


def test_automatic_size_where_there_are_cards():
    """Two clients of 32 images fill a pass; ten clients on four cards are three for each."""
    assert automatic_size(10, 32, cards=1) == 2
    assert automatic_size(10, 32, cards=4) == 2
    assert automatic_size(10, 8, cards=4) == 3
    assert automatic_size(3, 8, cards=4) == 1


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("auto", ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda", ["cuda:0", "cuda:1", "cuda:2"]),
        ("cuda:1", ["cuda:1"]),
        (("cuda:2", "cuda:0"), ["cuda:2", "cuda:0"]),
        ("cpu", ["cpu"]),
        (("cpu", "cpu"), ["cpu", "cpu"]),
    ],
)
def test_devices_by_name(monkeypatch, wanted, found):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert pick_devices(wanted) == [torch.device(name) for name in found]


def test_devices_that_are_not_there(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    for missing in ("cuda:2", "tpu", "cuda:x", ("cuda:0", "cuda:5")):
        with pytest.raises(InputError, match=r"device '(cuda:[25x]|tpu)' is not available here"):
            pick_devices(missing)
    with pytest.raises(InputError, match=r"several kinds \(cuda:0, cpu\)"):
        pick_devices(("cuda:0", "cpu"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(InputError, match="'cuda' is not available"):
        pick_devices("cuda")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("cuda:0,cuda:1", ("cuda:0", "cuda:1")),
        ('["cuda:0", "cuda:1"]', ("cuda:0", "cuda:1")),
        ('["cpu"]', "cpu"),
        ("cuda:1", "cuda:1"),
    ],
)
def test_devices_in_a_config(given, read):
    assert make_config({}, [f"engine.device={given}"]).engine.device == read


@pytest.mark.parametrize("given", ["[]", "3", "cuda:x", "cuda:0,gpu"])
def test_devices_that_are_none(given):
    with pytest.raises(InputError, match=r"engine\.device = "):
        make_config({}, [f"engine.device={given}"])


QUICK = {
    "run": {"rounds": 2, "methods": ["fedrep"]},
    "data": {
        "name": "digits",
        "partition": "dirichlet",
        "alpha": 1.0,
        "num_clients": 3,
        "max_images_per_client": 16,
    },
    "model": {"backbone": "random:demo"},
    "adapter": {"layers": "last 1"},
    "training": {"lr": 0.02, "batch_size": 4},
    "engine": {"clients_per_pass": 2, "device": "cpu"},
}


def test_a_run_on_two_devices_is_that_on_one(tmp_path):
    """To the last byte: two shares of the processor; its checkpoints know of the two."""
    run(make_config(QUICK), tmp_path / "one")
    config = make_config(QUICK, ["engine.device=cpu,cpu"])
    run(config, tmp_path / "two")
    assert lines(tmp_path / "two") == lines(tmp_path / "one")
    models = [
        sorted((tmp_path / name / "adapters").rglob("*.safetensors")) for name in ("one", "two")
    ]
    assert len(models[0]) == 3
    assert [m.read_bytes() for m in models[0]] == [m.read_bytes() for m in models[1]]
    world = World.build(config)
    assert world.made_with("fedrep")["devices"] == 2
    assert "devices" not in World.build(make_config(QUICK)).made_with("fedrep")


@pytest.mark.parametrize(
    "variants",
    [
        ["some"],
        pytest.param(
            ["methods", "dora", "ia3", "dropout", "no tokens", "rounded", "text"],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["noise"],
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(
                    find_spec("opacus") is None, reason="needs pip install 'pfedseq[privacy]'"
                ),
            ],
        ),
    ],
    ids=["some", "all", "noise"],
)
def test_tensors_of_two_devices_never_meet(tmp_path, variants):
    """Clients shared out to a device that refuses the processor's tensors, and the processor."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.pretending", str(tmp_path), *variants],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in variants:
        here, there = (lines(tmp_path / kind / name) for kind in ("processor", "pretended"))
        for one, other in zip(here, there, strict=True):
            case = (name, one["method"], one["round"])
            assert other["test"]["loss"] == pytest.approx(one["test"]["loss"], rel=1e-3), case
            assert other["bytes_up"] == one["bytes_up"], case


@pytest.mark.skipif(torch.cuda.device_count() < 1, reason="there is no graphics card here")
@pytest.mark.parametrize("name", METHODS)
def test_on_graphics_cards(name, tmp_path):
    """As on the processor but for rounding, over all cards that there are."""
    values = QUICK | {"run": {"rounds": 2, "methods": [name]}}
    run(make_config(values), tmp_path / "cpu")
    run(make_config(values, ["engine.device=cuda"]), tmp_path / "cuda")
    for one, other in zip(lines(tmp_path / "cpu"), lines(tmp_path / "cuda"), strict=True):
        assert other["test_loss"] == pytest.approx(one["test_loss"], rel=1e-2)
