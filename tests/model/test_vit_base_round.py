"""The paper's backbone size through a real round of the paper's method on this machine."""

import resource
import sys

import numpy as np
import pytest
import torch

from pfedseq.data.dataset import ClientData, ImageSet
from pfedseq.engines.local import LocalClients
from pfedseq.federation import Setup
from pfedseq.methods import find_method
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.backbone import load_backbone
from pfedseq.model.task import ExampleSite
from pfedseq.workloads.images.source import ImageSource

CLIENTS, TRAIN, TEST, CLASSES = 3, 8, 4, 10


def peak_mib() -> float:
    """The largest resident set of this process so far."""
    unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


@pytest.mark.slow
def test_vit_base_goes_through_two_rounds(capsys):
    """ViT-B/16 at 224 pixels with 73,728 adapter weights: warm up, then personalise."""
    before = peak_mib()
    backbone = load_backbone("random:vit-base", 224)
    model = AdaptedModel(backbone, AdapterConfig(rank=2), CLASSES, seed=0)  # the paper's rank
    assert model.initial.adapter.numel() == 73_728
    each = TRAIN + TEST
    rng = np.random.default_rng(0)
    images = ImageSet(
        "noise",
        rng.integers(0, 256, (CLIENTS * each, 3, 224, 224), dtype=np.uint8),
        rng.integers(0, CLASSES, CLIENTS * each),
        tuple("abcdefghij"),
    )
    source = ImageSource(images, backbone.mean, backbone.std, torch.device("cpu"))
    sites = []
    for i in range(CLIENTS):
        mine = np.arange(i * each, (i + 1) * each)
        data = ClientData(str(i), mine[:TRAIN], mine[:1], mine[TRAIN:])
        sites.append(ExampleSite(i, model, source, data, batch_size=8, seed=0))
    method = find_method("pfedseq")
    config = method.config(lr=0.01, warmup_rounds=1, max_sequence_length=2)
    clients = LocalClients(method.client, config, sites, threads=2)
    server = method.server(config, Setup(model.initial, (TRAIN,) * CLIENTS, 2, seed=0))
    for t in (1, 2):
        server.run_round(t, clients)
    down = {i: server.payload(i) for i in clients.ids}
    replies = clients.call("evaluate", 2, down)
    with capsys.disabled():
        print(
            f"\nViT-B/16, {CLIENTS} clients, batches of 8 images at 224 pixels, two at a time: "
            f"peak {peak_mib():.0f} MiB, {peak_mib() - before:.0f} MiB above the start"
        )
    assert all(np.isfinite(reply.metrics["test_loss"]) for reply in replies.values())
    assert not torch.equal(down[0]["adapter"], down[1]["adapter"]), "they are personal"
    assert not torch.equal(down[0]["adapter"], model.initial.adapter)
