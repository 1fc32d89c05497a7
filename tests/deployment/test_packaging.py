"""The files for operators: every command in them is one that its program takes."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
import typer
import yaml

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from flwr.cli.app import app as flwr_app
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

from pfedseq.cli import app
from pfedseq.config import load_config

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILES = sorted(DEPLOY.glob("docker/*.Dockerfile"))
UNITS = sorted(DEPLOY.glob("systemd/*.service"))
INSTRUCTIONS = {
    "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN",
    "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
}  # fmt: skip


def check_command(words):
    """Refuse a program that is not known here, or options that it does not take."""
    program, *arguments = words
    match Path(program).name:
        case "pfedseq":
            parse(typer.main.get_command(app), arguments)
        case "flwr":
            parse(typer.main.get_command(flwr_app), arguments)
        case "flower-superlink":
            _parse_args_run_superlink().parse_args(arguments)
        case "nginx":
            assert arguments[0::2] == ["-c", "-g"]
        case "python":
            assert arguments[0] == "-c"
            compile(arguments[1], "<health>", "exec")
        case "kill":
            assert arguments == ["-HUP", "$MAINPID"]
        case _:
            raise AssertionError(f"{program} is not known here")


def parse(command, words):
    """Follow subcommands to the last, and let it read its arguments without running it."""
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        name, *words = words
        command = command.commands[name]
    context = click.Context(command)
    parser = command.make_parser(context)
    given, rest, _ = parser.parse_args(list(words))
    assert not rest, rest
    for parameter in command.params:
        if parameter.required and not parameter.envvar:
            value = given.get(parameter.name)  # click has a value for "not given"
            assert isinstance(value, str | list | tuple), f"{command.name} lacks {parameter.name}"


def instructions(path):
    text = re.sub(r"\\\n", " ", path.read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [line.split(None, 1) for line in lines]


def test_wrong_commands_are_noticed():
    check_command(["pfedseq", "serve", "runs/tiles", "--port", "1"])
    for words in (
        ["pfedseq", "serve", "runs/tiles", "--prot", "1"],
        ["pfedseq", "flower", "proxy"],
        ["pfedseq", "flower", "keys", "certificates", "more"],
        ["pfedseq", "flower", "fly"],
        ["flwr", "supernode", "register"],
        ["flower-supernode"],
    ):
        with pytest.raises((click.ClickException, AssertionError, KeyError)):
            check_command(words)
    with pytest.raises(SystemExit):
        check_command(["flower-superlink", "--no-such-option"])


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)
def test_an_image_copies_what_is_there_and_runs_what_exists_as_a_user(path):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    found = instructions(path)
    names = [name for name, _ in found]
    assert set(names) <= INSTRUCTIONS
    assert names[0] == "FROM"
    for name, rest in found:
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored, f"{source} is not sent to the builder"
        if name in ("CMD", "ENTRYPOINT"):
            words = json.loads(rest)
            if name == "ENTRYPOINT":
                words += ["--superlink", "link:9092", "--name", "a"]
            check_command(words)
        if name == "HEALTHCHECK":
            check_command(json.loads(rest.partition("CMD ")[2]))
    assert ["USER", "pfedseq"] in found
    (extra,) = re.findall(r"'/source\[(\w+)\]'", path.read_text())
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in extras["optional-dependencies"]


def compose():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_the_composition_names_images_files_and_commands_that_exist():
    given = compose()
    services, volumes = given["services"], given["volumes"]
    made = {"certificates", "proxy", "models", "token", "clinic-a", "clinic-b", "clinic-c"}
    for service in services.values():
        if "build" in service:
            assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
            assert (ROOT / service["build"]["dockerfile"]) in DOCKERFILES
        for mount in service.get("volumes", []):
            source = mount.split(":")[0]
            if source.startswith("./"):
                first = Path(source).parts[0]
                assert first in made or (DEPLOY / source).exists(), source
            else:
                assert source in volumes
        for other in service.get("depends_on", []):
            assert other in services
        command = service.get("command", [])
        if service.get("entrypoint") == ["sh", "-ec"]:
            command = shlex.split(re.search(r"do (.*); done", command[0])[1])
        elif command and command[0].startswith("--"):
            entry = dict(instructions(ROOT / service["build"]["dockerfile"]))["ENTRYPOINT"]
            command = json.loads(entry) + command
        if command:
            check_command(command)
        if "healthcheck" in service:
            check_command(service["healthcheck"]["test"][1:])


def test_only_the_proxy_can_be_reached():
    services = compose()["services"]
    ports = {name: one["ports"] for name, one in services.items() if "ports" in one}
    assert ports == {"superlink": ["9092:9092"], "serve": ["127.0.0.1:8000:8000"]}
    assert services["proxy"]["network_mode"] == "service:superlink"
    for site in ("clinic-a", "clinic-b", "clinic-c"):
        mounted = " ".join(services[site]["volumes"])
        assert "ca.key" not in mounted
        assert mounted.count(".key:ro") == 1
        assert f"{site}.key:" in mounted
        assert services[site]["read_only"] is True


def test_the_commands_at_the_top_of_the_composition_exist():
    text = (DEPLOY / "compose.yaml").read_text()
    head = re.sub(r"\\\n#", " ", text[: text.index("\nname:")])
    commands = re.findall(r"docker compose (.*)", head)
    assert len(commands) == 8
    services = compose()["services"]
    for command in commands:
        verb, *words = shlex.split(command)
        words = [word for word in words if word not in ("--rm", "--detach")]
        if verb == "exec":
            assert words[0] in services
            check_command(words[1:])
        else:
            assert set(words) <= set(services), words


def test_configs_are_readable_and_as_in_the_guide():
    config = load_config(DEPLOY / "config" / "clinics.toml")
    assert config.flower.sites == 3
    guide = (ROOT / "docs/howto/deploying.md").read_text()
    own = (DEPLOY / "config" / "clinics.toml").read_text().partition("\n")[2]
    assert own in guide
    flwr = tomllib.loads((DEPLOY / "config" / "flwr.toml").read_text())
    assert flwr["superlink"]["clinics"]["address"] == "127.0.0.1:9091"


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_what_exists_and_starts_again(path):
    text = re.sub(r"\\\n", " ", path.read_text())
    values = [line.partition("=")[::2] for line in text.splitlines() if "=" in line]
    known = dict(values)
    assert known["Restart"] == "always"
    assert known["User"] == "pfedseq"
    assert known["StateDirectoryMode"] == "0700"
    starts = [value for name, value in values if name.startswith("Exec")]
    assert starts
    for start in starts:
        check_command(shlex.split(start))
    if "SuperLink of" in text:
        assert "--host 127.0.0.1" in known["ExecStart"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_understands_the_unit(path):
    done = subprocess.run(
        ["systemd-analyze", "verify", path], capture_output=True, text=True, check=False
    )
    problems = [line for line in done.stderr.splitlines() if "is not executable" not in line]
    assert not [line for line in problems if path.name in line], problems
