"""What a site makes of the run's config and of its own data."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.config import dump_config, make_config
from pfedseq.data.dataset import ImageSet
from pfedseq.deployment.messages import Request
from pfedseq.deployment.site import adjusted, own_data, own_noise, with_classes
from pfedseq.deployment.site_config import SiteConfig
from pfedseq.deployment.site_folder import SiteFolder
from pfedseq.engines.privacy import PrivacyConfig
from pfedseq.errors import InputError

RUN = make_config(
    {
        "data": {"image_size": 64, "train_fraction": 0.5, "validation_fraction": 0.25},
        "engine": {"device": "cpu", "clients_per_pass": 3},
    }
)


def site(**more):
    return SiteConfig("clinic", Path("state"), **more)


def test_backbone_and_device_are_the_sites_own():
    text = dump_config(RUN)
    here = adjusted(site(), text)
    assert here.engine == RUN.engine.model_copy(update={"device": "auto"})
    assert here.model == RUN.model
    there = adjusted(site(backbone="random:demo", device="cuda:1"), text)
    assert there.engine.device == "cuda:1"
    assert there.model == RUN.model.model_copy(update={"backbone": "random:demo"})
    assert there.data == here.data == RUN.data


def test_own_images_are_one_clients_and_split_as_the_run_says(tmp_path):
    mine = own_data(site(data=tmp_path), RUN.data)
    assert (mine.name, mine.source, mine.num_clients) == ("folder", str(tmp_path), 1)
    assert (mine.partition, mine.image_size) == ("iid", 64)
    assert (mine.train_fraction, mine.validation_fraction) == (0.5, 0.25)


def test_a_sites_own_section_may_split_otherwise_but_not_change_the_size(tmp_path):
    section = tmp_path / "data.toml"
    section.write_text(
        f"[data]\nname = 'folder'\nsource = '{tmp_path}'\ntrain_fraction = 0.6\nimage_size = 32\n"
    )
    mine = own_data(site(data=section), RUN.data)
    assert (mine.name, mine.num_clients, mine.image_size) == ("folder", 1, 64)
    assert (mine.train_fraction, mine.validation_fraction) == (0.6, 0.25)
    for damaged in ("", "[data"):
        section.write_text(damaged)
        with pytest.raises(
            InputError, match=r"site clinic: .*data\.toml has no valid \[data\] section"
        ):
            own_data(site(data=section), RUN.data)


def test_labels_are_those_of_the_federation():
    pixels = np.zeros((3, 3, 4, 4), dtype=np.uint8)
    images = ImageSet("mine", pixels, np.array([0, 1, 1]), ("cat", "dog"))
    assert with_classes(images, ("cat", "dog"), "clinic") is images
    moved = with_classes(images, ("ant", "dog", "cat"), "clinic")
    assert moved.labels.tolist() == [2, 1, 1]
    assert moved.class_names == ("ant", "dog", "cat")
    with pytest.raises(InputError, match="site clinic has images of dog, which the federation"):
        with_classes(images, ("ant", "cat"), "clinic")


def test_noise_is_the_same_for_the_same_message_and_for_no_other(tmp_path):
    """Another round, exchange, method, client, run or tensor: other noise; another secret, too."""
    sent, down = {"delta": torch.zeros(1, 4)}, {"adapter": torch.ones(1, 4)}

    def drawn(folder="a", t=1, i=0, down=down, **changed):
        known = {"run": "r", "method": "fedavg", "exchange": 0, **changed}
        request = Request(step="train", round=t, client=i, kept=0, config="", classes=(), **known)
        noise = own_noise(PrivacyConfig(noise=1.0), SiteFolder(tmp_path / folder), request)
        return tuple(noise.applied("train", t, i, sent, down)["delta"].flatten().tolist())

    first = drawn()
    assert drawn() == first
    others = [
        drawn("b"), drawn(t=2), drawn(i=1), drawn(exchange=1), drawn(method="ditto"),
        drawn(run="s"), drawn(down={"adapter": torch.zeros(1, 4)}),
    ]  # fmt: skip
    assert len({first, *others}) == 8
    request = Request("r", "fedavg", "train", 1, 0, 0, 0, "", ())
    assert own_noise(PrivacyConfig(), SiteFolder(tmp_path / "a"), request) is None


def test_flowers_secure_aggregation_still_needs_its_older_interface():
    """docs/explanation/privacy.md says so; where this fails, it may have become possible."""
    from flwr.app import Context, RecordDict
    from flwr.server.workflow import SecAggPlusWorkflow

    workflow = SecAggPlusWorkflow(num_shares=3, reconstruction_threshold=2)
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    with pytest.raises(TypeError, match="Expect a LegacyContext"):
        workflow(None, context)
