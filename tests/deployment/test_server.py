"""A federation's run: a server without data over sites of their own, on an in-process grid."""

import json
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq import load_config, run
from pfedseq.cli import app
from pfedseq.cli.flower_progress import _refusal
from pfedseq.config import dump_config, make_config
from pfedseq.data.record import train_count
from pfedseq.deployment.audit import SUBMISSION, Audit
from pfedseq.deployment.ledger import Ledger
from pfedseq.deployment.messages import Card
from pfedseq.deployment.posting import Node
from pfedseq.deployment.roll import Guest, Roll
from pfedseq.deployment.server import (
    Federation,
    _members,
    agreed_classes,
    check_equipment,
    check_newcomer,
    serve,
    sites_record,
)
from pfedseq.deployment.site_config import SiteConfig
from pfedseq.deployment.status import StatusFile
from pfedseq.errors import InputError
from pfedseq.federation import Hello, Setup
from pfedseq.files import refusing_company
from pfedseq.params import Params
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.identity import difference
from pfedseq.serving.prediction import predict_files
from pfedseq.workloads.personal import PersonalModel
from tests.deployment.configured_sites import (
    ConfiguredSite,
    Killed,
    assert_same,
    at_sites,
    digits_sites,
    models,
    serve_here,
    without_seconds,
)
from tests.deployment.grid import InProcessGrid, request

TINY = {
    "run": {"methods": ["pfedseq"], "rounds": 3},
    "data": {"name": "digits", "num_clients": 2, "max_images_per_client": 24},
    "training": {"lr": 0.02, "head_lr": 0.005, "examples_per_round": 6},
    "methods": {"pfedseq": {"warmup_rounds": 1}},
    "engine": {"clients_per_pass": 1, "device": "cpu"},
    "flower": {"start_seconds": 1, "answer_seconds": 60},
}


@pytest.fixture
def config(tmp_path):
    (tmp_path / "run.toml").write_text(dump_config(make_config(TINY)))
    return tmp_path / "run.toml"


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    out = tmp_path_factory.mktemp("one-machine") / "out"
    run(make_config(TINY), out)
    return out


def test_a_federation_makes_the_bits_of_one_machine(config, tmp_path, in_process):
    told = []
    serve_here(digits_sites(tmp_path), tmp_path / "out", config, told)
    assert without_seconds(tmp_path / "out") == without_seconds(in_process)
    there = models(*sorted((in_process / "adapters" / "pfedseq").iterdir()))
    assert_same(at_sites(tmp_path, tmp_path / "out"), there)
    assert told[-3:] == [
        f"pfedseq: round {r.round} of 3, accuracy {100 * r.scores.client_mean:.2f} %"
        for r in RunFolder(in_process).records()
    ]
    assert StatusFile(tmp_path / "out").read()["state"] == "finished"
    assert not (tmp_path / "out" / "adapters").exists(), "personal models stay at the sites"
    record = RunFolder(tmp_path / "out").read_data()
    alone = RunFolder(in_process).read_data()
    assert [train_count(c) for c in record["clients"]] == [
        len(c["train"]) for c in alone["clients"]
    ]
    report = CliRunner().invoke(app, ["report", str(tmp_path / "out")])
    assert report.exit_code == 0, report.output


def test_a_server_that_was_killed_goes_on_and_ends_with_the_same_bits(config, tmp_path, in_process):
    """Killed in round 3 once a site has trained: the site goes back to its memory of round 2."""
    sites, out, shown = digits_sites(tmp_path), tmp_path / "out", set()

    class Dying(InProcessGrid):
        def pull_messages(self, ids):
            replies = super().pull_messages(ids)
            shown.add(StatusFile(out).read()["sentence"])
            if any(reply.metadata.group_id == "3" for reply in replies):
                raise Killed
            return replies

    with pytest.raises(Killed):
        serve_here(sites, out, config, grid=Dying(sites))
    assert {"waiting for the sites", "round 1 has started"} < shown
    assert StatusFile(out).read()["state"] == "failed"
    serve_here(sites, out, None)
    assert without_seconds(out) == without_seconds(in_process)
    there = models(*sorted((in_process / "adapters" / "pfedseq").iterdir()))
    assert_same(at_sites(tmp_path, out), there)


def test_a_site_that_comes_later_is_let_in_written_down_and_found_again(tmp_path):
    """It comes in round 2, takes part from round 3; the server is killed before round 4."""
    three = {**TINY, "data": {**TINY["data"], "num_clients": 3}}
    three["run"] = {"methods": ["pfedseq"], "rounds": 4}
    served = make_config({**three, "flower": {**TINY["flower"], "sites": 2}})
    (tmp_path / "run.toml").write_text(dump_config(served))
    sites, out, told = digits_sites(tmp_path, 3), tmp_path / "out", []

    class Dying(InProcessGrid):
        def pull_messages(self, ids):
            replies = super().pull_messages(ids)
            groups = {reply.metadata.group_id for reply in replies}
            if "3" in groups:  # the sites have trained for round 3, which has not begun
                self.sites = sites
            if "4" in groups:
                raise Killed
            return replies

    with pytest.raises(Killed):
        serve_here(None, out, tmp_path / "run.toml", told, Dying(sites[:2]))
    assert "site 2 has joined" in told
    record = RunFolder(out).read_data()
    assert [(s["name"], s.get("joined")) for s in record["clients"]] == [
        ("0", None),
        ("1", None),
        ("2", True),
    ]
    serve_here(sites, out, None)
    assert [r.joined for r in RunFolder(out).records()] == [(), (), (2,), ()]
    late = {"late_clients": 0.34, "late_round": 3}
    run(make_config({**three, "federation": late}), tmp_path / "one-machine")
    assert without_seconds(out) == without_seconds(tmp_path / "one-machine")
    assert RunFolder(out).read_summary().clients == ("0", "1", "2")


def guest(classes):
    return Guest(Node(1, "", ""), Card("c", "folder", "weights", "1"), Hello(1, 1, 1, classes))


@pytest.mark.parametrize(
    ("classes", "options", "sentence"),
    [
        (("x", "y"), {"flower": {"newcomers": False}}, "flower.newcomers is false"),
        (("x", "y"), {"run": {"methods": ["fedavg", "apple"]}}, "apple needs all sites"),
        (("x", "z"), {}, "images of z"),
        (("x", "z"), {"flower": {"classes": "merge"}}, "images of z"),
        (("y", "x"), {}, "another order"),
        (("x",), {}, "other classes"),
        (("x",), {"flower": {"classes": "merge"}}, None),
        (("x", "y"), {}, None),
    ],
)
def test_who_is_let_in_later(classes, options, sentence):
    config = make_config(options)
    if sentence is None:
        check_newcomer(guest(classes), config, ("x", "y"))
        return
    with pytest.raises(InputError, match=f"site c was not part of the run.*{sentence}"):
        check_newcomer(guest(classes), config, ("x", "y"))


def test_simulated_comings_and_goings_are_not_for_real_sites(config, tmp_path):
    config.write_text(dump_config(load_config(config, ["federation.late_clients=0.5"])))
    with pytest.raises(InputError, match="real sites may join at any time"):
        serve_here([], tmp_path / "out", config)


def test_an_absent_site_is_named_and_the_run_goes_on(config, tmp_path):
    sites, told = digits_sites(tmp_path), []
    config.write_text(dump_config(load_config(config, ["flower.answer_seconds=1.5"])))
    sites[1].faults = [None, None, None, "before"]  # hello, round 1, then silence
    serve_here(sites, tmp_path / "out", config, told)
    assert any(s.endswith("; absent: 1") for s in told)
    assert [r.scores.clients for r in RunFolder(tmp_path / "out").records()] == [(0, 1), (0,), (0,)]


def picture_site(folder, name, colours):
    """Images of one colour each, in folders named after them."""
    for label, colour in colours.items():
        (folder / name / label).mkdir(parents=True)
        for k in range(8):
            Image.new("RGB", (32, 32), tuple(min(255, c + 4 * k) for c in colour)).save(
                folder / name / label / f"{k}.png"
            )
    return {"name": name, "data": str(folder / name), "state": str(folder / f"{name}-state")}


RED, GREEN, BLUE = (220, 0, 0), (0, 220, 0), (0, 0, 220)


def own_data_sites(folder, second):
    nodes = [
        picture_site(folder, "north", {"green": GREEN, "red": RED}),
        picture_site(folder, "south", second),
    ]
    return [ConfiguredSite(node, k + 7) for k, node in enumerate(nodes)]


OWN = {
    **TINY,
    "run": {"methods": ["fedavg"], "rounds": 2},
    "data": {"image_size": 32},
    "training": {"lr": 0.05, "local_epochs": 15, "batch_size": 4},
    "flower": {"sites": 2, "classes": "merge"},
}


def test_sites_with_their_own_images_are_merged_by_class_name(tmp_path, monkeypatch):
    """South's blue comes first in the alphabet: north's labels move, and predictions name them."""
    monkeypatch.setenv("PFEDSEQ_CACHE", str(tmp_path / "cache"))
    (tmp_path / "run.toml").write_text(dump_config(make_config(OWN)))
    sites = own_data_sites(tmp_path, {"blue": BLUE, "red": RED})
    serve_here(sites, tmp_path / "out", tmp_path / "run.toml")
    record = RunFolder(tmp_path / "out").read_data()
    assert record["class_names"] == ["blue", "green", "red"]
    assert [site["name"] for site in record["clients"]] == ["north", "south"]
    assert "source" not in json.dumps(record), "only counts and names of classes leave a site"
    name = StatusFile(tmp_path / "out").read()["run"]
    for site, label in (("north", "green"), ("south", "blue"), ("south", "red")):
        model = PersonalModel.load(tmp_path / f"{site}-state" / name / "fedavg" / "model")
        (prediction,) = predict_files(model, [tmp_path / site / label / "3.png"])
        assert prediction.classes == (label,)
        assert model.about["client"] == site
        assert model.about["method"] == "fedavg"


def test_other_classes_are_refused_with_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PFEDSEQ_CACHE", str(tmp_path / "cache"))
    own = OWN | {"flower": {"sites": 2}}
    (tmp_path / "run.toml").write_text(dump_config(make_config(own)))
    sites = own_data_sites(tmp_path, {"blue": BLUE, "red": RED})
    with pytest.raises(InputError, match="only one of them has blue, green"):
        serve_here(sites, tmp_path / "out", tmp_path / "run.toml")
    assert "flower.classes" in StatusFile(tmp_path / "out").read()["sentence"]


def test_classes_are_agreed_on_by_name():
    a, b = (Hello(1, 1, 1, names) for names in (("x", "y"), ("y", "z")))
    assert agreed_classes({"a": a, "c": a}, "same", print) == ("x", "y")
    assert agreed_classes({"a": a, "b": b}, "merge", print) == ("x", "y", "z")
    swapped = Hello(1, 1, 1, ("y", "x"))
    with pytest.raises(InputError, match="another order"):
        agreed_classes({"a": a, "b": swapped}, "same", print)


def test_what_is_written_down_of_sites_and_read_again():
    sites = {"a": Hello(5, 2, 3, ("x", "y")), "b": Hello(10, 1, 1, ("y",))}
    record = sites_record(make_config({}), sites, ("a",), ("x", "y"))
    counts = ({"train": 5, "validation": 2, "test": 3}, {"train": 10, "validation": 1, "test": 1})
    assert record == {
        "data": make_config({}).data.name,
        "num_images": 22,
        "images_sha256": None,
        "labels_sha256": None,
        "class_names": ["x", "y"],
        "notes": [],
        "clients": [
            {"name": "a", **counts[0], "class_names": ["x", "y"]},
            {"name": "b", **counts[1], "class_names": ["y"], "joined": True},
        ],
    }
    assert list(_members(record).items()) == list(sites.items())
    assert _members(None) is None


def test_another_pfedseq_is_refused(monkeypatch):
    monkeypatch.setattr("pfedseq.deployment.server.version", lambda name: {"pfedseq": "1"}[name])
    check_equipment([guest("xy")], "weights")
    newer = replace(guest("xy"), card=Card("c", "folder", "weights", "2"))
    with pytest.raises(InputError, match="site c runs pfedseq 2, but the server runs 1"):
        check_equipment([guest("xy"), newer], "weights")


def test_a_method_starts_with_what_the_sites_have_said(tmp_path):
    """With a checkpoint every three rounds, sites keep the memory of the one before the last."""
    values = {"run": {"rounds": 9, "seed": 5, "checkpoint_every": 3}, "methods": {}}
    conditions = {"aggregation": "trimmed_mean", "trim": 0.2, "max_weight": 0.4}
    config = make_config(
        {**values, "federation": conditions, "flower": {"answer_seconds": 7}},
        ["run.methods=['ditto']"],
    )
    start = Params(torch.zeros(2, 5), torch.zeros(3))
    roll = Roll(InProcessGrid([]), request("local"), 0.0, {"a": Hello(5, 2, 3, ("x", "y"))})
    model = SimpleNamespace(initial=start, device=torch.device("cpu"), factors=None)
    model.widened = lambda blocks: model
    ledger, workload = (
        Ledger(tmp_path, False),
        SimpleNamespace(model=model, sketch_shape=(3, 32, 32)),
    )
    federation = Federation(config, ledger, roll, roll.members, ("x", "y"), workload)
    server, flower = federation.start("ditto", None, ())
    expected = Setup(start, (5,), 9, 5, 2, aggregation="trimmed_mean", trim=0.2, max_weight=0.4)
    assert replace(server.setup, name_of=str) == expected
    assert server.setup.name_of(0) == "a"
    assert server.config == config.method_config("ditto")
    assert flower.ledger == ledger
    assert (flower.request.method, flower.request.classes) == ("ditto", ("x", "y"))
    assert (flower.seconds, flower.device) == (7, model.device)
    assert [flower.kept_at(t) for t in range(1, 12)] == [0] * 6 + [3] * 3 + [6] * 2
    made = federation.made_with("ditto")
    other = replace(federation, first={"a": Hello(6, 2, 3, ("x", "y"))}).made_with("ditto")
    assert difference(made, other).startswith("sites and their data was")
    assert made["config key methods.ditto.lr"] == server.config.lr


def test_an_edited_config_is_not_ignored_and_a_second_server_changes_no_status(config, tmp_path):
    out = tmp_path / "out"
    serve_here(digits_sites(tmp_path), out, config)
    before = StatusFile(out).read()
    config.write_text(dump_config(load_config(config, ["run.rounds=9"])))
    with pytest.raises(InputError, match=r"holds a run with other options \(run\.rounds was"):
        serve_here([], out, config)
    with refusing_company(out), pytest.raises(InputError, match="another process is working"):
        serve_here([], out, None)
    assert StatusFile(out).read() == before, "that of the run that lives"
    told = [e["reason"] for e in Audit(out).events() if e["site"] == SUBMISSION]
    assert ["run.rounds was" in told[0], "another process is working" in told[1]] == [True, True]
    assert "another process is working" in _refusal(out, 0.0)
    assert _refusal(out, time.time() + 1) is None, "it was of an earlier submission"


def test_the_configs_limit_on_replies_counts_from_the_hello_on(config, tmp_path):
    config.write_text(dump_config(load_config(config, ["flower.max_reply_mb=0.00001"])))
    with pytest.raises(InputError, match=r"its reply is larger than 1e-05 MB"):
        serve_here(digits_sites(tmp_path), tmp_path / "out", config)


def test_a_site_that_comes_back_with_another_backbone_is_not_taken_back():
    def check(guest):
        check_equipment([guest], "weights")

    said = []
    member = Hello(5, 2, 3, ("x",))
    roll = Roll(InProcessGrid([]), request("local"), 0.0, {"a": member})
    roll.note = lambda event, site, **more: said.append((event, site))
    roll.check = check
    for starts, backbone in ((1, "weights"), (2, "others"), (3, "weights")):
        node = Node(7, f"{starts:03d}", "")
        roll._welcome(Guest(node, Card("a", "f", backbone, version("pfedseq")), member), {node})
        assert ("a" in roll.guests) == (backbone == "weights")
        assert ("a" in roll.problems) == (backbone != "weights")
    assert said == [("joined", "a"), ("refused", "a"), ("joined", "a")]


def test_a_site_with_another_backbone_is_refused(config, tmp_path):
    sites = digits_sites(tmp_path)
    other = {"partition-id": 1, "state": str(tmp_path / "x"), "backbone": "random:demo"}
    sites[1] = ConfiguredSite(other, 8)
    with pytest.raises(InputError, match="site 1 has different backbone weights"):
        serve_here(sites, tmp_path / "out", config)


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        ({"state": "s"}, "names no data"),
        ({"partition-id": 0}, "names no folder"),
        ({"data": "d", "state": "s"}, "needs a name"),
        ({"partition-id": 0, "stat": "s"}, "unknown key 'stat'"),
    ],
)
def test_a_site_says_what_its_node_config_lacks(node, sentence):
    with pytest.raises(InputError, match=sentence):
        SiteConfig.read(node, {"sites": "/somewhere/the/server/chose"})


def test_a_site_is_what_its_node_config_says():
    own = {"name": "a", "data": "d", "state": "s", "backbone": "b", "device": "cpu"}
    assert SiteConfig.read(own, {}) == SiteConfig("a", Path("s"), None, Path("d"), "b", "cpu")
    part = SiteConfig.read({"partition-id": 2, "state": "~/s"}, {})
    assert part == SiteConfig("2", Path.home() / "s", 2, None, None, None)


def test_only_a_simulated_site_takes_its_folder_from_the_run():
    simulated = SiteConfig.read({"partition-id": 3, "num-partitions": 5}, {"sites": "/s"})
    assert str(simulated.folder) == "/s/site_3"


def test_a_partition_that_is_not_there(config, tmp_path):
    node = {"partition-id": 5, "state": str(tmp_path / "x")}
    with pytest.raises(InputError, match="partition-id=5"):
        serve_here([ConfiguredSite(node, 7)], tmp_path / "out", config)


def test_nothing_to_go_on_with(tmp_path):
    with pytest.raises(InputError, match="has no run to continue"):
        serve(InProcessGrid([]), tmp_path / "out", None, print)
    assert load_config("demo").flower.classes == "same"
