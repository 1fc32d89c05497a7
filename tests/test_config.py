"""Configs: what is wrong is said in one sentence; what is right survives a round trip."""

import pytest

from pfedseq.config import dump_config, load_config, make_config
from pfedseq.errors import InputError


def refused(values=None, overrides=()):
    with pytest.raises(InputError) as error:
        make_config(values or {}, overrides)
    message = str(error.value)
    assert "\n" not in message
    return message


def test_unknown_keys_name_the_nearest():
    assert "'run.rouds': did you mean 'rounds'?" in refused({"run": {"rouds": 3}})
    assert "'trainig': did you mean 'training'?" in refused({"trainig": {}})
    message = refused({"methods": {"pfedseq": {"warmup": 3}}})
    assert "'methods.pfedseq.warmup': did you mean 'warmup_rounds'?" in message
    assert "did you mean 'fedavg'" in refused({"run": {"methods": ["fedag"]}})
    assert "did you mean 'fedavg'" in refused({"methods": {"fedag": {}}})


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("run.rounds=many", "run.rounds = 'many'"),
        ("run.rounds=0", "run.rounds = 0: must be at least 1"),
        ("training.lr=-1", "training.lr = -1: .*greater than 0"),
        ("methods.pfedseq.max_sequence_length=0", "methods.pfedseq.max_sequence_length = 0"),
        ("engine.device=tpu", "engine.device = 'tpu'.*'cpu'"),
        ("adapter.targets=['querry']", "adapter.targets"),
        ("run.methods=[]", "run.methods"),
        ("adapter.layers=true", "^config key adapter.layers = True: must be .* or a list$"),
        ("training.grad_clip=1", "'training.grad_clip': did you mean 'clip_norm'"),
        ("training.banana=1", "'training.banana': known are .*, lr, "),
        ("data.images=photos", "'data.images': did you mean 'source'"),
        ("rounds=3", "SECTION.KEY=VALUE, e.g. run.rounds=10"),
        ("run.rounds", "SECTION.KEY=VALUE"),
    ],
)
def test_wrong_values_say_where_and_what(override, says):
    import re

    assert re.search(says, refused(overrides=[override]))


def test_overrides_win_and_are_typed():
    config = make_config(
        {"run": {"rounds": 5}},
        ["run.rounds=7", "run.methods=['local', 'pfedseq']", "methods.pfedseq.learner_lr=0.01"],
    )
    assert config.run.rounds == 7
    assert config.run.methods == ("local", "pfedseq")
    assert config.method_config("pfedseq").learner_lr == 0.01


def test_training_options_reach_every_method_unless_it_has_its_own():
    config = make_config(
        {
            "run": {"methods": ["local", "fedavg"]},
            "training": {"lr": 0.3, "local_epochs": 2},
            "methods": {"fedavg": {"lr": 0.1}},
        }
    )
    assert config.method_config("local").lr == 0.3
    assert config.method_config("fedavg").lr == 0.1
    assert config.method_config("fedavg").local_epochs == 2


def test_resolved_config_survives_its_file(tmp_path):
    config = make_config({"run": {"methods": ["pfedseq", "fedrep"]}}, ["data.alpha=0.3"])
    path = tmp_path / "config.toml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
    assert "max_sequence_length = 20" in path.read_text(), "defaults are written out"
    assert "\n[data]\n# not set: source, store, " in path.read_text()


def test_files_that_are_missing_or_broken(tmp_path):
    with pytest.raises(InputError, match="there is no config file"):
        load_config(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\n")
    with pytest.raises(InputError, match="not valid TOML"):
        load_config(broken)


def test_the_file_names_the_run(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[run]\nrounds = 2\n")
    assert load_config(path).run.name == "mine"
