"""A config that names every method survives being resolved, written and read again."""

import tomllib

import pytest

from pfedseq.config import dump_config, make_config
from pfedseq.engines.local import LocalClients
from pfedseq.engines.privacy import Privacy, PrivacyConfig
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from tests.every_method import OPTIONS, every_method
from tests.toys import make_setup, quadratic_federation, random_centers


def test_every_methods_options_survive_the_toml():
    config = make_config({"run": {"methods": list(METHODS)}})
    again = make_config(tomllib.loads(dump_config(config)))
    assert again == config
    for name in METHODS:
        shared = ("head_lr", "head", "head_momentum", "max_step")
        common = {key: getattr(config.training, key) for key in shared}
        assert again.method_config(name) == METHODS[name].config(**common)


def test_the_auxiliary_set_is_a_section_of_its_own():
    values = {"auxiliary": {"name": "cifar10", "source": "somewhere", "num_images": 10}}
    config = make_config(values, ["auxiliary.num_images=20"])
    assert config.auxiliary.num_images == 20
    assert make_config(tomllib.loads(dump_config(config))).auxiliary == config.auxiliary
    with pytest.raises(InputError, match=r"auxiliary\.nmae"):
        make_config({"auxiliary": {"nmae": "cifar10"}})
    with pytest.raises(InputError, match="needs source"):
        make_config({"auxiliary": {"name": "folder"}})


@every_method
def test_noise_is_refused_before_the_run_where_clients_send_no_updates(name):
    """What a method says of itself agrees with what its clients send in two rounds."""
    method, centers = METHODS[name], random_centers(3, adapter_dim=10)
    config = method.config(lr=0.1, **OPTIONS.get(name, {}))
    privacy = Privacy.simulated(PrivacyConfig(noise=0.1), 0, name)
    sites = quadratic_federation(centers, (4, 2, 3))
    clients = LocalClients(method.client, config, sites, privacy=privacy)
    server = method.server(config, make_setup(centers, (4, 2, 3)))
    given = {"run": {"methods": ["fedavg", name]}, "privacy": {"noise": 0.1}}
    if method.client.sends_updates:
        for t in (1, 2):
            server.run_round(t, clients)
        assert make_config(given).run.methods[1] == name
        return
    with pytest.raises(InputError, match="cannot be added with this method"):
        server.run_round(1, clients)
    with pytest.raises(InputError, match=f"privacy.noise cannot be added with {name}"):
        make_config(given)


def test_methods_of_loras_factors_are_refused_before_any_other_has_run():
    known = {name: method.adapters for name, method in METHODS.items()}
    for kind in ("lora", "dora", "ia3"):
        fitting = [name for name, kinds in known.items() if kind in kinds]
        values = {"adapter": {"kind": kind}}
        assert make_config({"run": {"methods": fitting}, **values}).adapter.kind == kind
        for name in set(known) - set(fitting):
            with pytest.raises(InputError, match=f"{name} works on LoRA's two factors"):
                make_config({"run": {"methods": ["fedavg", name]}, **values})
    assert {name for name, kinds in known.items() if "ia3" not in kinds} == {
        *("fedsa_lora", "ffa_lora", "flexlora", "feddpa", "fedalt", "floral")
    }
