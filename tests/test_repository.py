"""What surrounds the code: pins, workflows and the map for language models agree with it."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def pins(name: str) -> dict[str, str]:
    text = (ROOT / name).read_text(encoding="utf-8")
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.M)
    return {re.sub(r"[-_.]+", "-", key).lower(): version for key, version in found}


def test_the_lock_has_the_versions_of_the_constraints_and_names_no_host():
    locked, wanted = pins("requirements.lock"), pins("constraints.txt")
    assert {key: locked[key] for key in locked.keys() & wanted.keys()} == {
        key: wanted[key] for key in locked.keys() & wanted.keys()
    }
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert text.count("==") <= text.count("--hash=sha256:")


def test_every_dependency_is_locked():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    names = {re.match(r"[\w.-]+", line)[0] for line in lines}
    assert {re.sub(r"[-_.]+", "-", n).lower() for n in names} <= pins("requirements.lock").keys()


def test_workflows_are_readable_and_ask_for_no_more_than_they_need():
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 3
    for path in workflows:
        workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert workflow["permissions"] == {"contents": "read"}
        for job in workflow["jobs"].values():
            assert job["runs-on"]
            assert all(("uses" in step) != ("run" in step) for step in job["steps"])
            used = [step["uses"] for step in job["steps"] if "uses" in step]
            assert [one for one in used if not re.search(r"@[0-9a-f]{40}$", one)] == []


def test_the_version_is_the_same_everywhere():
    import pfedseq

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == pfedseq.__version__
    assert f"## {pfedseq.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_llms_txt_names_files_that_are_there():
    named = re.findall(r"\]\(([^)]+)\)", (ROOT / "llms.txt").read_text(encoding="utf-8"))
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []
