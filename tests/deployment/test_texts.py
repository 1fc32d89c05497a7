"""Sites that hold texts: the bits of one machine, and sites with a CSV file of their own."""

import csv

import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq import run
from pfedseq.config import dump_config, make_config
from pfedseq.deployment.server import serve
from pfedseq.deployment.status import StatusFile
from pfedseq.runs.folder import RunFolder
from pfedseq.serving.client_models import ClientModels
from pfedseq.workloads.personal import PersonalModel
from tests.deployment.configured_sites import ConfiguredSite
from tests.deployment.grid import InProcessGrid
from tests.model.tiny_text_models import WORDS, write_text_model


def write_texts(path, labels, client=None):
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["client", "label", "text"])
        for number in range(12):
            for label in labels:
                words = WORDS[label].split()
                owner = client or ("anna", "bob")[number % 2]
                rows.writerow(
                    [owner, label, f"{words[number % 3]} {words[number % 2]} so {number}"]
                )
    return path


def config_of(folder, source, **data):
    return make_config(
        {
            "run": {"methods": ["ditto"], "rounds": 2},
            "data": {"name": "text", "source": str(source), "max_tokens": 10, **data},
            "model": {"backbone": write_text_model("bert", folder / "encoder")},
            "training": {"batch_size": 4},
            "engine": {"device": "cpu", "clients_per_pass": 1},
            "flower": {"sites": 2, "classes": "merge", "start_seconds": 1, "answer_seconds": 60},
        }
    )


def served(folder, config, nodes):
    (folder / "run.toml").write_text(dump_config(config))
    sites = [ConfiguredSite(node, k + 7) for k, node in enumerate(nodes)]
    serve(InProcessGrid(sites), folder / "out", folder / "run.toml", [].append, pause=0.0)
    return StatusFile(folder / "out").read()["run"]


def test_sites_of_one_data_set_make_the_bits_of_one_machine(tmp_path):
    config = config_of(tmp_path, write_texts(tmp_path / "all.csv", WORDS))
    run(config, tmp_path / "alone")
    nodes = [
        {"partition-id": k, "state": str(tmp_path / f"site{k}"), "device": "cpu"} for k in range(2)
    ]
    name = served(tmp_path, config, nodes)
    for k, alone in enumerate(ClientModels.open(tmp_path / "alone").places):
        here = PersonalModel.load(tmp_path / f"site{k}" / name / "ditto" / "model").phi
        there = PersonalModel.load(alone.folder).phi
        assert torch.equal(here.adapter, there.adapter)
        assert torch.equal(here.head, there.head)


def test_sites_with_their_own_texts_are_merged_by_class_name(tmp_path):
    """The server reads no data; what its config calls their source is nowhere."""
    labels = {"north": ("sky", "sport"), "south": ("food", "sport")}
    nodes = []
    for name, own in labels.items():
        data = write_texts(tmp_path / f"{name}.csv", own, client=name)
        state = str(tmp_path / f"{name}-state")
        nodes.append({"name": name, "data": str(data), "state": state, "device": "cpu"})
    run_name = served(tmp_path, config_of(tmp_path, "at-the-sites.csv"), nodes)
    record = RunFolder(tmp_path / "out").read_data()
    assert record["class_names"] == ["food", "sky", "sport"]
    for name in labels:
        model = PersonalModel.load(tmp_path / f"{name}-state" / run_name / "ditto" / "model")
        assert (model.reader.unit, model.reader.max_tokens) == ("text", 10)
        assert (model.about["client"], model.class_names) == (name, ("food", "sky", "sport"))
