"""Methods and data sets from outside the package: by file, by entry point, and what is said of
those that are missing, changed or broken."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from pfedseq import cli, plugins
from pfedseq.config import dump_config, load_config, make_config, read_config
from pfedseq.data.registry import DATA_SETS
from pfedseq.errors import InputError
from pfedseq.methods import METHODS, chosen, find_method, method_title
from pfedseq.plugins import Registry, load_file

EXAMPLE = Path(__file__).parents[1] / "examples/plugin"
DAMPED = EXAMPLE / "pfedseq_example/damped.py"
QUICK = """
[run]
methods = ["damped"]
rounds = 2
[data]
name = "digits"
num_clients = 3
max_images_per_client = 24
[training]
lr = 0.05
batch_size = 8
"""


@pytest.fixture
def forget():
    """Makes this process as one that has just begun; and so it is afterwards."""
    registries, kept = list(plugins._registries), []
    for registry in registries:
        kept.append((dict(registry._things), dict(registry.origins), dict(registry.broken)))

    def do():
        plugins._files.clear()
        plugins._registries[:] = registries
        for registry, (things, origins, broken) in zip(registries, kept, strict=True):
            registry._things, registry.origins = dict(things), dict(origins)
            registry.broken = dict(broken)

    yield do
    do()


@pytest.fixture
def command(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["pfedseq", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, " ".join(out.split()), " ".join(err.split())

    return run


@pytest.fixture
def quick(tmp_path):
    path = tmp_path / "quick.toml"
    path.write_text(QUICK)
    return path


@pytest.fixture
def mine(tmp_path):
    """A user's file."""
    file = tmp_path / "own/damped.py"
    file.parent.mkdir()
    file.write_text(DAMPED.read_text())
    return file


def test_a_users_method_is_run_resumed_reported_and_used(forget, command, quick, mine, tmp_path):
    out = tmp_path / "out"
    code, _, err = command("run", quick, "--out", out)
    assert (code, "there is no method 'damped'" in err) == (2, True)
    assert command("run", quick, "--plugin", mine, "--out", out)[0] == 0
    saved = read_config(out / "config.toml").plugins[0]
    assert saved.file == str(mine)
    assert len(saved.sha256) == 64

    forget()
    (out / "summary.json").unlink()
    code, text, _ = command("resume", out)
    assert (code, "Damped" in text) == (0, True)

    forget()
    assert command("report", out)[0] == 0
    assert "damped" in (out / "report.html").read_text()
    photo = tmp_path / "photo.png"
    Image.new("RGB", (40, 40), "white").save(photo)
    code, text, _ = command("predict", out, photo, "--client", "0")
    assert (code, "photo.png" in text) == (0, True)
    assert command("export", out, "--all", "--to", tmp_path / "exported")[0] == 0
    assert "damped" not in METHODS, "what only looks executes nothing"
    assert method_title("damped") == "damped"
    assert command("report", out, "--plugin", mine)[0] == 0
    assert method_title("damped") == "Damped"


def test_what_is_missing_or_changed_is_said_in_a_sentence(forget, command, quick, mine, tmp_path):
    out = tmp_path / "out"
    assert command("run", quick, "--plugin", mine, "--out", out)[0] == 0
    (out / "summary.json").unlink()
    moved = mine.rename(tmp_path / "moved.py")

    forget()
    code, _, err = command("resume", out)
    assert code == 2
    assert f"cannot read the plug-in {mine}" in err
    assert "--plugin FILE" in err
    assert command("resume", out, "--plugin", moved)[0] == 0, "the same content elsewhere"

    forget()
    (out / "summary.json").unlink()
    mine.write_text(moved.read_text().replace("0.5, gt=0", "0.6, gt=0"))
    code, _, err = command("resume", out)
    assert code == 2
    assert f"the plug-in {mine} has changed since the run was started" in err
    assert "damped" not in METHODS, "a file that is not the one meant is not executed"


def test_a_config_names_its_plugin_from_its_own_folder(forget, mine, tmp_path, monkeypatch):
    text = 'plugins = ["own/damped.py"]\n' + QUICK
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.chdir("/")
    config = load_config(tmp_path / "mine.toml")
    assert config.plugins[0].file == str(mine)
    assert config.method_config("damped").share == 0.5
    again = tmp_path / "again.toml"
    again.write_text(dump_config(config))
    assert load_config(again) == config


def test_a_config_that_comes_in_a_message_executes_nothing(forget, tmp_path):
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')")
    config = make_config({"plugins": [str(trap)]})
    assert config.plugins[0].file == str(trap)
    (tmp_path / "config.toml").write_text(dump_config(config))
    read_config(tmp_path / "config.toml")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
        ("def", "cannot be loaded: SyntaxError"),
        ("x = 1", "defines nothing to register: none of DataSet, .*Method"),
        ("from pfedseq import InputError\nraise InputError('not today')", "not today"),
    ],
)
def test_a_file_that_is_no_good_is_refused(forget, tmp_path, code, said):
    file = tmp_path / "bad.py"
    file.write_text(code)
    find_method("local")
    assert DATA_SETS
    with pytest.raises(InputError, match=said):
        load_file(file)


def test_an_edited_file_replaces_its_own_method_and_nobody_elses(forget, mine, tmp_path):
    load_file(mine)
    first = METHODS["damped"]
    assert load_file(mine).place == str(mine)
    assert METHODS["damped"] is first, "a file is executed once"
    mine.write_text(mine.read_text().replace('title="Damped"', 'title="Calmer"'))
    load_file(mine)
    assert METHODS["damped"].title == "Calmer"
    other = tmp_path / "other.py"
    other.write_text(DAMPED.read_text())
    with pytest.raises(InputError, match="already a method 'damped'"):
        load_file(other)


def test_a_registry_made_later_finds_what_files_have_defined(forget, tmp_path):
    file = tmp_path / "two.py"
    file.write_text(
        DAMPED.read_text()
        + "\nimport fractions\nclass Spoon(fractions.Fraction):\n    name = 'ladle'\n"
        "SPOON = Spoon(1, 2)\n"
    )
    load_file(file)
    spoon = type(sys.modules[METHODS["damped"].server.__module__].SPOON)
    spoons = Registry("spoon", "pfedseq.spoons", spoon, [])
    assert list(spoons) == ["ladle"]
    assert spoons.origins["ladle"].place == str(file)


def offer(folder, group, name, value, monkeypatch):
    """An installed package with one entry point, and registries that have not asked yet."""
    place = folder / "offer-1.2.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: offer\nVersion: 1.2\n")
    (place / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(METHODS, "_asked", False)


def test_an_installed_packages_method_is_known(forget, tmp_path, monkeypatch):
    (tmp_path / "offered.py").write_text(DAMPED.read_text())
    offer(tmp_path, "pfedseq.methods", "damped", "offered:METHOD", monkeypatch)
    assert METHODS["damped"].title == "Damped"
    assert METHODS.origins["damped"].code == "offer 1.2"
    assert list(METHODS)[-1] == "damped"
    assert chosen("local,all")[0] == "local"
    assert chosen("all")[-1] == "damped"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("METHOD = 7", "offered:METHOD is no Method"),
        ("raise OSError('no network')", "OSError: no network"),
        (DAMPED.read_text().replace('name="damped"', 'name="fedavg"'), "already a method 'fedavg'"),
    ],
)
def test_a_broken_package_is_named_and_spoils_nothing(
    forget, tmp_path, monkeypatch, command, code, said
):
    (tmp_path / "offered.py").write_text(code)
    monkeypatch.delitem(sys.modules, "offered", raising=False)
    offer(tmp_path, "pfedseq.methods", "theirs", "offered:METHOD", monkeypatch)
    assert find_method("fedavg").title == "FedAvg"
    with pytest.raises(InputError, match=f"'theirs' of the installed package offer 1.2 .*{said}"):
        find_method("theirs")
    code, text, _ = command("methods")
    assert code == 0
    assert said in text


@pytest.mark.slow
def test_the_example_package_is_small_installs_and_runs(tmp_path):
    for file in EXAMPLE.rglob("*.py"):
        assert len(file.read_text().splitlines()) < 60, file
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--target", str(tmp_path / "lib"))
    source = tmp_path / "source"
    subprocess.run(["cp", "-r", str(EXAMPLE), str(source)], check=True)
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(source)], check=True)
    photos = tmp_path / "photos"
    photos.mkdir()
    for owner in ("anna", "ben"):
        for colour in ("red", "blue"):
            for number in range(8):
                image = Image.new("RGB", (32, 32), (number, 20 * number, 90))
                image.paste(colour, (0, 0, 16, 32))
                image.save(photos / f"{owner}_{colour}_{number}.png")
    config = tmp_path / "c.toml"
    config.write_text(
        '[run]\nmethods = ["damped"]\nrounds = 1\n[data]\nname = "named_files"\n'
        f'source = "photos"\nimage_size = 32\nstore = "{tmp_path}/store"\n'
    )
    paths = [str(tmp_path / "lib"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, "-m", "pfedseq", "run", str(config), "--out", str(tmp_path / "out")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "Damped" in done.stdout
    assert {p.name for p in (tmp_path / "out/adapters/damped").iterdir()} == {"anna", "ben"}
