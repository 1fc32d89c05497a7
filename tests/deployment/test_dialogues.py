"""Sites that hold dialogues: the bits of one machine, and sites with a file of their own."""

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq import run
from pfedseq.config import dump_config, make_config
from pfedseq.deployment.status import StatusFile
from pfedseq.runs.folder import RunFolder
from pfedseq.serving.client_models import ClientModels
from pfedseq.workloads.personal import PersonalModel
from tests.deployment.configured_sites import ConfiguredSite, assert_same, models, serve_here
from tests.model.tiny_language_models import STYLES, write_dialogues, write_language_model


def config_of(folder, source, *methods, **data):
    return make_config(
        {
            "run": {"methods": list(methods), "rounds": 2},
            "data": {"name": "dialogue", "source": str(source), "max_tokens": 24, **data},
            "model": {"backbone": write_language_model("llama", folder / "llama")},
            "adapter": {"rank": 2, "alpha": 4.0},
            "training": {"lr": 0.05, "batch_size": 4},
            "engine": {"device": "cpu", "clients_per_pass": 1},
            "flower": {"sites": len(STYLES), "start_seconds": 1, "answer_seconds": 60},
        }
    )


def served(folder, config, nodes):
    (folder / "run.toml").write_text(dump_config(config))
    sites = [ConfiguredSite(node, k + 7) for k, node in enumerate(nodes)]
    serve_here(sites, folder / "out", folder / "run.toml")
    return StatusFile(folder / "out").read()["run"]


@pytest.mark.parametrize("method", ["pfedseq", "ditto"])
def test_sites_of_one_data_set_make_the_bits_of_one_machine(method, tmp_path):
    config = config_of(tmp_path, write_dialogues(tmp_path / "talk"), method)
    alone = run(config, tmp_path / "alone").methods[method].scores
    nodes = [
        {"partition-id": k, "state": str(tmp_path / f"site{k}"), "device": "cpu"}
        for k in range(len(STYLES))
    ]
    name = served(tmp_path, config, nodes)
    there = [place.folder for place in ClientModels.open(tmp_path / "alone").places]
    here = [tmp_path / f"site{k}" / name / method / "model" for k in range(len(STYLES))]
    assert_same(models(*here), models(*there))
    there = RunFolder(tmp_path / "out").read_summary().methods[method].scores
    assert there.test["perplexity"] == alone.test["perplexity"]


def test_sites_with_their_own_dialogues(tmp_path):
    """The server reads no data; each site's model answers prompts."""
    talk = write_dialogues(tmp_path / "talk")
    files = {path.stem: path for path in talk.rglob("*") if path.is_file()}
    assert files.keys() == STYLES.keys()
    nodes = [
        {"name": name, "data": str(path), "state": str(tmp_path / f"{name}-state"), "device": "cpu"}
        for name, path in sorted(files.items())
    ]
    run_name = served(tmp_path, config_of(tmp_path, "at-the-sites.jsonl", "fedavg"), nodes)
    assert RunFolder(tmp_path / "out").read_data()["class_names"] == []
    starts = []
    for name in STYLES:
        place = tmp_path / f"{name}-state" / run_name / "fedavg" / "model"
        model = PersonalModel.load(place)
        assert (model.reader.unit, model.reader.max_tokens) == ("dialogue", 24)
        assert model.about["client"] == name
        starts.append(load_file(place / "adapter_model.safetensors"))
    assert_same(starts[:1] * 2, starts[1:])
    assert torch.count_nonzero(model.phi.adapter) > 0
