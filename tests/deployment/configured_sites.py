"""Sites in this process that answer as their SuperNodes would, from a node config."""

import json

import torch
from safetensors.torch import load_file

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.server import serve
from pfedseq.deployment.site_app import answer_here
from pfedseq.deployment.site_config import SiteConfig
from pfedseq.deployment.status import StatusFile
from tests.deployment.grid import InProcessGrid, Site


class Killed(BaseException):
    """The server's end in the middle of a round."""


class ConfiguredSite(Site):
    """A site as its SuperNode would run it, answering from its node config."""

    def __init__(self, node, number):
        self.config = SiteConfig.read(node, {})
        super().__init__(self.config.name, self.config.folder, None, number)

    def reply(self, content):
        return answer_here(self.config, Envelope.of_records(content)).to_records()


def digits_sites(folder, count=2):
    return [
        ConfiguredSite(
            {"partition-id": k, "state": str(folder / f"site{k}"), "device": "cpu"}, k + 7
        )
        for k in range(count)
    ]


def serve_here(sites, out, config, told=None, grid=None):
    tell = [].append if told is None else told.append
    return serve(grid or InProcessGrid(sites), out, config, tell, pause=0.0)


def without_seconds(out):
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.endswith("_seconds")} for line in lines]


def models(*places):
    return [load_file(place / "adapter_model.safetensors") for place in places]


def at_sites(folder, out, method="pfedseq"):
    name = StatusFile(out).read()["run"]
    return models(*(folder / f"site{k}" / name / method / "model" for k in range(2)))


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
