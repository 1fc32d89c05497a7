"""Methods that know LoRA's factors, on a real model: what they start from, save and refuse."""

import json

import pytest
import torch

from pfedseq.config import make_config
from pfedseq.engines.rounds import run_rounds
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.runs.run import run
from pfedseq.runs.world import World
from pfedseq.serving.client_models import ClientModels

SMALL = {
    "run": {"rounds": 1},
    "data": {"name": "digits", "num_clients": 2, "max_images_per_client": 24},
    "adapter": {"rank": 2, "alpha": 4.0},
    "training": {"lr": 0.05, "batch_size": 8},
}
SEVERAL = {"feddpa": 2, "fedalt": 2, "floral": 3}
FACTORS = ("fedsa_lora", "ffa_lora", "flexlora", *SEVERAL)


def config(*methods, **sections):
    values = {**SMALL, "methods": {"floral": {"num_adapters": 3}}, **sections}
    return make_config({**values, "run": {**SMALL["run"], "methods": list(methods)}})


@pytest.fixture(scope="module")
def world():
    return World.build(config("local"))


def test_the_layout_knows_a_and_b(world):
    """Merging by hand from the views is what the model computes."""
    model = world.model
    factors, theta = model.factors, torch.randn_like(model.initial.adapter)
    named = model.layout.unflatten(theta)
    found = factors.matrices(theta)
    assert factors.only_factors
    assert factors.rank == 2
    for k, layer in enumerate(model.layout.layers):
        names = [n for n in named if f".{layer}." in f".{n}" and "lora_A" in n]
        assert len(names) == len(found) == 2
        for m, name in zip(found, names, strict=True):
            assert torch.equal(m.down[k], named[name])
            assert torch.equal(m.up[k], named[name.replace("lora_A", "lora_B")])


@pytest.mark.parametrize("blocks", [2, 3])
def test_several_loras_start_as_one_and_add_up(world, blocks):
    """Side by side at full weight they are W + (α/r) Σ_b B_b A_b, with the α/r of one."""
    model, wide = world.model, world.model.widened(blocks)
    assert wide is world.model.widened(blocks), "made once"
    parts = wide.factors.split(wide.initial.adapter, blocks)
    assert torch.equal(parts[0], model.initial.adapter)
    assert torch.equal(wide.initial.head, model.initial.head)
    assert not torch.equal(parts[0], parts[1])
    inputs = model.inputs(torch.randn(2, 3, 32, 32))
    rng = torch.Generator().manual_seed(1)
    parts = [torch.randn(parts[0].shape, generator=rng) * 0.1 for _ in range(blocks)]
    joined = wide.features(wide.factors.join(parts), inputs)
    empty = torch.zeros_like(parts[0])
    one = wide.features(wide.factors.join([parts[0], *[empty] * (blocks - 1)]), inputs)
    torch.testing.assert_close(one, model.features(parts[0], inputs), rtol=1e-4, atol=1e-5)
    merged = wide.merged(wide.factors.join(parts))(inputs)
    torch.testing.assert_close(joined, merged, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(joined, one, atol=1e-3)


def test_a_run_saves_what_is_served(tmp_path):
    run(config(*FACTORS), tmp_path / "out")
    for name in FACTORS:
        folder = next((tmp_path / "out/adapters" / name).iterdir())
        saved = json.loads((folder / "adapter_config.json").read_text())
        blocks = SEVERAL.get(name, 1)
        assert (saved["r"], saved["lora_alpha"]) == (2 * blocks, 4.0 * blocks)
        personal = ClientModels.open(tmp_path / "out", name).load(0)
        assert personal.phi.adapter.isfinite().all()


@pytest.mark.parametrize("name", FACTORS)
def test_groups_and_single_clients_agree(world, name):
    found = []
    for together in (1, 2):
        chosen = config(name, engine={"clients_per_pass": together})
        alike = World(**{**vars(world), "config": chosen})
        server, clients = alike.start(name)
        run_rounds(server, clients, range(1, 3), lambda outcome: None)
        down = server.payload(1)
        state = dict(clients.states.get(1))
        task = clients.sites[1].task(3, "evaluate")
        found.append(METHODS[name].client(chosen.method_config(name), task, state).personal(down))
    torch.testing.assert_close(found[0].adapter, found[1].adapter, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(found[0].head, found[1].head, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", FACTORS)
def test_an_adapter_without_factors_is_refused(name):
    with pytest.raises(InputError, match=rf"{name} works on LoRA's two factors.*'ia3'.*to 'lora'"):
        config(name, adapter={"kind": "ia3"})


@pytest.mark.parametrize("name", ["flexlora", *SEVERAL])
def test_products_are_not_doras(name):
    with pytest.raises(InputError, match=rf"{name} works on LoRA's two factors.*'dora'.*to 'lora'"):
        config(name, adapter={"kind": "dora"})
