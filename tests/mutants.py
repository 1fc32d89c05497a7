"""Change the code in one small place at a time and count which changes the tests notice.

    python -m tests.mutants                   every change; hours
    python -m tests.mutants --sample 400      a random sample of them, and what it says of all
    python -m tests.mutants methods/ditto.py  every change of one file
    python -m tests.mutants --again           only what was not noticed the last time

The changes are mutmut's, inside functions: an operator swapped, a number one higher, an argument
None or left out, a condition forced. The words of errors are left alone, and so is `strict` of a
zip: it guards against what never happens, and no test can reach it. A text is changed in one way.
The tests are imported once; for every change a fork of that process gives the function its changed
code and runs the tests that concern its file (`tests/mutant_tests.py`) until one fails. Tests that
start processes are skipped, and what runs while a module is imported is unchanged.

What came out is kept in `mutants/results.jsonl`, and what was tried before is not tried again.
"""

import argparse
import ast
import contextlib
import difflib
import hashlib
import importlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path

import libcst as cst
import libcst.matchers as m
import pytest
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace
from rich.progress import Progress
from scipy.stats import binomtest

from tests.mutant_tests import TESTS

SOURCE = Path("src/pfedseq")
OUT = Path("mutants")
RESULTS = OUT / "results.jsonl"
NOT_MADE = 70


class Mutant:
    """One change of one function of one file."""

    def __init__(self, file: str, module: cst.Module, mutation: Mutation, function: str) -> None:
        self.file = file
        self.module = module
        self.mutation = mutation
        self.function = function

    @cached_property
    def text(self) -> str:
        """The changed file."""
        node = self.mutation.original_node
        return deep_replace(self.module, node, self.mutation.mutated_node).code

    @property
    def change(self) -> str:
        """The lines that changed, as a diff has them."""
        before, after = self.module.code.splitlines(), self.text.splitlines()
        return "\n".join(list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:])

    @property
    def key(self) -> str:
        """The same for the same change of the same function, whatever stands around it."""
        function = self.mutation.contained_by_top_level_function
        changed = deep_replace(function, self.mutation.original_node, self.mutation.mutated_node)
        text = f"{self.file} {self.function}\n{self.module.code_for_node(changed)}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def apply(self) -> None:
        """Give the function of this process its changed code."""
        name = ".".join(("pfedseq", *Path(self.file).with_suffix("").parts))
        module = importlib.import_module(name.removesuffix(".__init__"))
        *owner, attribute = self.function.split(".")
        holder = getattr(module, owner[0]) if owner else module
        kept = vars(holder)[attribute]
        function = getattr(kept, "__func__", kept)
        code = code_named(compile(self.text, str(SOURCE / self.file), "exec"), self.function)
        function.__defaults__, function.__kwdefaults__ = self._defaults(vars(module))
        if code.co_freevars == function.__code__.co_freevars:
            function.__code__ = code
            return
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        closure = tuple(cells[name] for name in code.co_freevars)
        changed = types.FunctionType(
            code, function.__globals__, attribute, function.__defaults__, closure
        )
        changed.__kwdefaults__ = function.__kwdefaults__
        setattr(holder, attribute, changed if function is kept else type(kept)(changed))

    def _defaults(self, names: dict) -> tuple:
        """The defaults of the changed function's arguments."""
        body = ast.parse(self.text).body
        for part in self.function.split("."):
            found = next(node for node in body if getattr(node, "name", None) == part)
            body = found.body
        for argument in ast.walk(found.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        empty = eval(f"lambda {ast.unparse(found.args)}: None", dict(names))
        return empty.__defaults__, empty.__kwdefaults__


def code_named(code: types.CodeType, name: str) -> types.CodeType:
    """The code of a function of that qualified name within a module's."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            if inner.co_qualname == name:
                return inner
            if name.startswith(f"{inner.co_qualname}."):
                return code_named(inner, name)
    raise LookupError(name)


@dataclass(frozen=True)
class Result:
    """What became of a mutant."""

    key: str
    file: str
    function: str
    change: str
    outcome: str
    """noticed, too long or not noticed."""
    by: str
    """The first test that failed."""
    seconds: float


def tests_of(file: str) -> list[str]:
    """The test files that concern a source file."""
    names = next(names for pattern, names in TESTS.items() if fnmatch(file, pattern))
    paths = (f"tests/{name}.py" for name in names.format(stem=Path(file).stem).split())
    return [path for path in paths if Path(path).exists()]


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every change of a file's functions; of a text only the first."""
    path = SOURCE / file
    module, mutations, _, _ = create_mutations(str(path), path.read_text())
    names = dict(named_functions(module))
    texts = set()
    strict = {arg.value for arg in m.findall(module, m.Arg(keyword=m.Name("strict")))}
    for mutation in mutations:
        function = names.get(mutation.contained_by_top_level_function)
        node = mutation.original_node
        if function is None or node in texts or node in strict or is_guard(mutation):
            continue
        if isinstance(node, cst.SimpleString):
            texts.add(node)
        yield Mutant(file, module, mutation, function)


def is_guard(mutation: Mutation) -> bool:
    """Whether of a call only the argument `strict` is changed."""
    calls = mutation.original_node, mutation.mutated_node
    if not all(isinstance(call, cst.Call) for call in calls):
        return False
    before, after = (
        [arg.value for arg in call.args if not m.matches(arg, m.Arg(keyword=m.Name("strict")))]
        for call in calls
    )
    if len(before) == len(calls[0].args) or len(before) != len(after):
        return False
    pairs = zip((calls[0].func, *before), (calls[1].func, *after), strict=True)
    return all(one.deep_equals(other) for one, other in pairs)


def named_functions(module: cst.Module) -> Iterator[tuple[cst.FunctionDef, str]]:
    """The functions and methods of a module by their qualified names."""
    for node in module.body:
        if isinstance(node, cst.FunctionDef):
            yield node, node.name.value
        elif isinstance(node, cst.ClassDef):
            for inner in node.body.body:
                if isinstance(inner, cst.FunctionDef):
                    yield inner, f"{node.name.value}.{inner.name.value}"


class TryMutants:
    """A plugin of pytest: in place of the collected tests' one run, one run for every mutant."""

    def __init__(self, mutants: list[Mutant], workers: int, limit: int) -> None:
        self.mutants = mutants
        self.workers = workers
        self.limit = limit

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants, several at a time; then those who noticed, on the code as it is."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        by_file: dict[str, list[pytest.Item]] = {}
        for item in session.items:
            by_file.setdefault(item.nodeid.split("::")[0], []).append(item)
        waiting = self.mutants[::-1]
        running: dict[int, tuple[Mutant, Path, float]] = {}
        noticing: set[str] = set()
        with RESULTS.open("a") as results, Progress(disable=not sys.stderr.isatty()) as progress:
            bar = progress.add_task("mutants", total=len(waiting))
            while waiting or running:
                while waiting and len(running) < self.workers:
                    mutant = waiting.pop()
                    items = concerning(mutant, by_file)
                    child, place = self._fork(items, self.limit, mutant)
                    running[child] = mutant, place, time.monotonic()
                child, status = os.wait()
                mutant, place, since = running.pop(child)
                result = Result(
                    mutant.key,
                    mutant.file,
                    mutant.function,
                    mutant.change,
                    meaning(status),
                    clear(child, place),
                    round(time.monotonic() - since, 1),
                )
                results.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
                results.flush()
                progress.advance(bar)
                noticing.add(result.by)
        self._check_unchanged(session, [item for item in session.items if item.nodeid in noticing])
        return True

    def _check_unchanged(self, session: pytest.Session, noticing: list[pytest.Item]) -> None:
        """If a test fails on the code as it is, what it says of a mutant means nothing."""
        child, place = self._fork(noticing, 10 * self.limit, None)
        _, status = os.waitpid(child, 0)
        failed = clear(child, place)
        if status != 0:
            raise session.Failed(f"on the unchanged code {meaning(status)}: {failed}")

    def _fork(
        self, items: list[pytest.Item], limit: int, mutant: Mutant | None
    ) -> tuple[int, Path]:
        """Start the tests on the changed code: the process and its folder."""
        sys.stdout.flush()
        place = OUT / f"place{time.monotonic_ns()}"
        place.mkdir()
        child = os.fork()
        if child == 0:
            try:
                if mutant is not None:
                    mutant.apply()
            except BaseException as problem:
                sys.__stderr__.write(f"{mutant.file} {mutant.function}: {problem!r}\n")
                os._exit(NOT_MADE)
            try:
                run_until_failure(items, limit, place.resolve())
            finally:
                os._exit(1)
        return child, place


def run_until_failure(items: list[pytest.Item], limit: int, place: Path) -> None:
    """In a fork: run tests until one fails, and end with 1 if one did."""
    os.setsid()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(10 * limit)  # for tests that wait for ever
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(place)
    subprocess.Popen = no_process  # type: ignore[misc]
    for item, following in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if item.session.testsfailed:
            (place / "failed").write_text(item.nodeid)
            os._exit(1)
    os._exit(0)


def no_process(*_: object, **__: object) -> None:
    """In place of `subprocess.Popen`: the code of another process is not the changed one."""
    pytest.skip("starts a process")


def concerning(mutant: Mutant, by_file: dict[str, list[pytest.Item]]) -> list[pytest.Item]:
    """The tests for a mutant; of those that run for every method only the changed method's."""
    items = [item for file in tests_of(mutant.file) for item in by_file.get(file, ())]
    path = Path(mutant.file)
    if path.parent != Path("methods"):
        return items
    cases = [(item, getattr(item, "callspec", None)) for item in items]
    return [
        item
        for item, case in cases
        if case is None or case.params.get("name", path.stem) == path.stem
    ]


def meaning(status: int) -> str:
    """What a child's end says."""
    code = os.waitstatus_to_exitcode(status)
    if code == NOT_MADE:
        raise RuntimeError("a change could not be made")
    late = (-signal.SIGALRM, -signal.SIGXCPU, -signal.SIGKILL)
    return {0: "not noticed"}.get(code, "too long" if code in late else "noticed")


def clear(child: int, place: Path) -> str:
    """End what a child's tests have left running, remove its folder; the test that failed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    failed = place / "failed"
    text = failed.read_text() if failed.exists() else ""
    shutil.rmtree(place, ignore_errors=True)
    return text


def known_results() -> dict[str, Result]:
    """What earlier runs wrote down, the last word on each mutant."""
    if not RESULTS.exists():
        return {}
    found = (Result(**json.loads(line)) for line in RESULTS.read_text().splitlines())
    return {result.key: result for result in found}


def report(chosen: list[Mutant], of: int) -> None:
    """A table by room, the share with its interval where it is a sample, and what was missed."""
    known = known_results()
    results = [known[mutant.key] for mutant in chosen if mutant.key in known]
    rooms = sorted({room(result.file) for result in results})
    print(f"{'':14}{'noticed':>10}{'too long':>10}{'not noticed':>13}{'share':>9}")
    for name in [*rooms, "all"]:
        count = Counter(r.outcome for r in results if name in ("all", room(r.file)))
        seen, total = count["noticed"] + count["too long"], count.total()
        print(
            f"{name:14}{count['noticed']:10}{count['too long']:10}{count['not noticed']:13}"
            f"{seen / total:9.1%}"
        )
    if total < of:
        interval = binomtest(seen, total).proportion_ci(method="wilson")
        print(
            f"a sample of {total} of {of}: with 95 % confidence "
            f"{interval.low:.1%} to {interval.high:.1%} of all are noticed"
        )
    for result in results:
        if result.outcome == "not noticed":
            print(f"\n{result.file} {result.function} {result.change}")


def room(file: str) -> str:
    """The folder, or the file where it lies at the top."""
    return Path(file).parts[0]


def every_file() -> list[str]:
    """The files that some line of `TESTS` fits."""
    files = (str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py"))
    return sorted(f for f in files if any(fnmatch(f, pattern) for pattern in TESTS))


def main() -> None:
    """Choose, try, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="only these, such as methods/fedavg.py")
    parser.add_argument("--sample", type=int, help="that many of the changes, chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="of the choice")
    parser.add_argument("--again", action="store_true", help="only what was not noticed before")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--limit", type=int, default=120, help="seconds of computing for one change"
    )
    given = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    mutants = [mutant for file in given.files or every_file() for mutant in mutants_of(file)]
    chosen = mutants
    if given.sample is not None and given.sample < len(mutants):
        chosen = random.Random(given.seed).sample(mutants, given.sample)
    known = known_results()
    if given.again:
        known = {k: result for k, result in known.items() if result.outcome != "not noticed"}
    todo = [mutant for mutant in chosen if mutant.key not in known]
    if todo:
        tests = sorted({test for mutant in todo for test in tests_of(mutant.file)})
        plugin = TryMutants(todo, given.workers, given.limit)
        options = ["-q", "--tb=no", "--capture=no", "-p", "no:cacheprovider"]
        if pytest.main([*options, *tests], plugins=[plugin]) != 0:
            raise SystemExit(1)
    report(chosen, len(mutants))


if __name__ == "__main__":
    main()
