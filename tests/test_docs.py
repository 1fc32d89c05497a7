"""The documentation: pages that follow from the code are complete, links lead somewhere."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pfedseq.config import Config
from pfedseq.errors import InputError
from pfedseq.methods import METHODS
from pfedseq.report.options import find_section, options, sections
from pfedseq.training.config import LocalTraining

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    """The generated pages by name, made in a process of their own as Sphinx does."""
    folder = tmp_path_factory.mktemp("generated")
    code = "import sys, pathlib, generate; generate.write_pages(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=DOCS, check=True)
    return {
        str(page.relative_to(folder).as_posix()): page.read_text(encoding="utf-8")
        for page in folder.rglob("*.md")
    }


def test_every_option_of_a_config_is_explained(generated):
    parts = re.split(r"^## \[([\w.]+)\]$", generated["options.md"], flags=re.M)[1:]
    shown = dict(zip(parts[::2], parts[1::2], strict=True))
    fields = set(Config.model_fields) - {"methods"}
    assert set(shown) == fields | {f"methods.{name}" for name in METHODS}
    for name, section in sections().items():
        for option in options(section):
            inherited = name.startswith("methods.") and option.key in LocalTraining.model_fields
            assert (f"| `{option.key}` |" in shown[name]) is not inherited
            assert option.description, f"[{name}] {option.key} has no description"


def test_defaults_and_ranges_are_those_of_the_models():
    found = {option.key: option for option in options(find_section("federation"))}
    assert (found["participation"].default, found["participation"].allowed) == (
        "1",
        "number, > 0, ≤ 1",
    )
    learner = {option.key: option for option in options(find_section("methods.pfedseq"))}
    assert learner["row_share"].allowed == 'number, > 0, ≤ 1 or "auto"'
    assert found["aggregation"].allowed.startswith('"mean", "median"')
    assert found["gone_after"].default == ""
    targets = {option.key: option for option in options(find_section("adapter"))}["targets"]
    assert targets.default == '["query", "value"]'
    with pytest.raises(InputError, match="did you mean 'federation'"):
        find_section("federatoin")
    for name in ("lr", "training.lrr"):
        with pytest.raises(InputError, match=f"option '{name}': did you mean 'training.lr'"):
            find_section(name)


def test_every_method_has_a_page_with_its_options(generated):
    for name, method in METHODS.items():
        page = generated[f"methods/{name}.md"]
        assert page.startswith(f"# {method.title}\n")
        assert "Deviations" in page
        for key in method.config.model_fields:
            assert f"| `{key}` |" in page


def test_every_command_and_public_name_is_there(generated):
    import pfedseq
    from pfedseq.cli import app

    assert r"\\[" not in generated["cli.md"], "a bracket is escaped once"
    commands = {c.name or c.callback.__name__ for c in app.registered_commands}
    for name in commands:
        assert f"## pfedseq {name}\n" in generated["cli.md"]
    for name in pfedseq.__all__:
        assert re.search(rf"^:+\{{py:(class|function)\}} {name}\b", generated["api.md"], re.M)


def anchors(page: Path) -> set[str]:
    """What GitHub and MyST make of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


def test_links_between_pages_lead_somewhere():
    pages = [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]
    pages = [p for p in pages if not {"generated", "_build"} & {*p.parts}]
    assert len(pages) > 20
    broken = []
    for page in pages:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"\w+:", target):
                continue
            name, _, anchor = target.partition("#")
            place = (page.parent / name).resolve() if name else page
            if "generated" in place.parts:  # Sphinx checks these
                continue
            if not place.exists() or (anchor and anchor not in anchors(place)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


@pytest.mark.slow
def functions(text):
    """The test functions of a file, and those that are marked slow."""
    tree = ast.parse(text)
    marks = [n for n in tree.body if isinstance(n, ast.Assign) and "mark.slow" in ast.unparse(n)]
    tests = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    slow = {
        name
        for name, test in tests.items()
        if marks or any("mark.slow" in ast.unparse(d) for d in test.decorator_list)
    }
    return set(tests), slow


def test_every_fault_names_a_test_that_exists():
    text = (DOCS / "howto" / "reliability.md").read_text(encoding="utf-8")
    tables = text[text.index("## Faults of a federation") :]
    rows = [line for line in tables.splitlines() if line.startswith("| ")]
    named = [re.findall(r"(slow )?`(tests/[\w/]+\.py)::(\w+)`", row) for row in rows]
    assert [bool(found) for found in named].count(False) == 4, "two heads of two lines"
    for marked, file, name in (one for found in named for one in found):
        tests, slow = functions((ROOT / file).read_text(encoding="utf-8"))
        assert name in tests, (file, name)
        assert (name in slow) == bool(marked), (file, name)


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("myst_nb", reason="needs the extra `docs`")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "-q"]
    done = subprocess.run([*command, DOCS, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "searchindex.js").stat().st_size > 10_000
