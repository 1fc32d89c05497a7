"""A complete Flower federation on this machine: its folder and its processes.

Every process listens on 127.0.0.1 only. Processes are identified by number and start time, so that
only the federation's own processes are ever stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from pfedseq.deployment.node import JOINED
from pfedseq.errors import InputError
from pfedseq.files import read_object, write_atomically

CONNECTION = "here"
"""The SuperLink's name in Flower's commands, with FLWR_HOME set to the federation's folder."""
START_SECONDS = 90.0
STOP_SECONDS = 10.0
RETRY_SECONDS = 5.0
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Started:
    """A process of the federation."""

    role: str
    pid: int
    created: float
    log: str
    port: int
    arguments: list[str]

    def process(self) -> psutil.Process | None:
        """The process, or None once it has ended."""
        return running(self.pid, self.created)


class Loopback:
    """The folder of a federation on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.file = self.folder / "processes.json"
        self.home = self.folder / "flwr"
        self.app = self.folder / "app"

    def sites(self) -> list[Path]:
        """The sites' folders, in order."""
        return [Path(site) for site in self.read()["sites"]]

    def read(self) -> dict[str, Any]:
        """The description that `start` wrote."""
        values = read_object(self.file)
        if values is None:
            raise InputError(
                f"there is no federation in {self.folder}: `pfedseq flower up` starts one"
            )
        return values

    def started(self) -> list[Started]:
        """Its processes, running or not."""
        return [Started(**one) for one in self.read()["processes"]]

    def start(self, clients: int, secure: bool) -> Iterator[str]:
        """Start a SuperLink and `clients` sites; yields progress messages."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        copy_app(self.app)
        (port,) = free_ports(1)
        names = [f"site-{k}" for k in range(clients)]
        sites = [self.folder / "sites" / name for name in names]
        server_tls, node_tls = ["--insecure"], ["--insecure"]
        if secure:
            from pfedseq.deployment.certificates import make_certificates

            made = make_certificates(self.folder / "certificates", [HOST], names)
            server_tls = [*made.server_options(), "--enable-supernode-auth"]
            node_tls = made.node_options()
        self.write_connection(port, node_tls if secure else None)
        self._write({"sites": [str(site) for site in sites], "runs": [], "processes": []})
        try:
            yield f"starting the SuperLink on {HOST}:{port}"
            link = ["flower-superlink", *server_tls, "--host", HOST, "--port", str(port)]
            link += ["--database", str(self.folder / "superlink.db")]
            link += ["--disable-runtime-dependency-installation"]
            self._wait_for(self._spawn("superlink", port, link))
            for k, (name, site) in enumerate(zip(names, sites, strict=True)):
                yield f"starting the site {name}"
                node = [sys.executable, "-m", "pfedseq", "flower", "site", *node_tls]
                if secure:
                    public = str(made.node_public_key(name))
                    self.flwr("supernode", "register", public, CONNECTION, "--name", name)
                    node += ["--key", str(made.node_key(name))]
                node += ["--superlink", f"{HOST}:{port}", "--name", name, "--state", str(site)]
                self._spawn(name, 0, [*node, "--partition", str(k)])
            for one in self.started():
                if one.role != "superlink" and not self._has_joined(one, 0):
                    raise InputError(f"the site {one.role} has not joined: see {one.log}")
        except BaseException:
            self.stop()
            raise

    def start_again(self) -> Iterator[str]:
        """Restart processes that have ended, with their original arguments."""
        for one in self.started():
            deadline = time.monotonic() + START_SECONDS
            while one.process() is None:
                yield f"starting the {one.role} again"
                length = Path(one.log).stat().st_size
                one = self._spawn(one.role, one.port, one.arguments)
                if one.role == "superlink":
                    self._wait_for(one)
                elif not self._has_joined(one, length):
                    # For a minute after a site is killed, the SuperLink considers it alive and
                    # refuses another site with its key.
                    if time.monotonic() > deadline:
                        raise InputError(f"the site {one.role} keeps ending: see {one.log}")
                    yield f"the SuperLink still considers the old {one.role} alive; waiting"
                    time.sleep(RETRY_SECONDS)

    def _has_joined(self, one: Started, length: int) -> bool:
        """Whether the SuperLink has admitted a site; reads its log from byte `length` on."""
        deadline = time.monotonic() + START_SECONDS
        while one.process() is not None and time.monotonic() < deadline:
            if JOINED.encode() in Path(one.log).read_bytes()[length:]:
                return True
            time.sleep(0.2)
        return False

    def stop(self) -> list[Started]:
        """Stop the processes that are still running; returns them."""
        running = [one for one in self.started() if one.process()]
        stop(running)
        return running

    def flwr(self, *arguments: str) -> str:
        """Run Flower's command; returns its output, or raises its error as one sentence."""
        done = subprocess.run(
            [command("flwr"), *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = [line.strip("│╭╮╰╯─ ") for line in (done.stdout + done.stderr).splitlines()]
            raise InputError(f"flwr {arguments[0]}: {' '.join(line for line in lines if line)}")
        return done.stdout

    def fate(self, run: str) -> str | None:
        """Flower's description of how a run ended; None while it is pending or running."""
        answer = json.loads(self.flwr("ls", CONNECTION, "--run-id", run, "--format", "json"))
        if not answer.get("success"):
            return f"the SuperLink does not know of it ({answer.get('error-message')})"
        (row,) = answer["runs"]
        how = " ".join(word for word in (row["status"], row["status-details"]) if word)
        return f"Flower says {how}" if row["status"].startswith("finished") else None

    def remember_run(self, out: Path) -> None:
        """Record the folder of a run's results."""
        values = self.read()
        runs = [run for run in values["runs"] if run != str(out)] + [str(out)]
        self._write(values | {"runs": runs})

    def environment(self) -> dict[str, str]:
        """Environment variables; telemetry, update check and dependency installs are off."""
        paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        return os.environ | {
            "PATH": os.pathsep.join(paths),
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        }

    def write_connection(self, port: int, node_tls: Sequence[str] | None) -> None:
        """Write the SuperLink's address for Flower's commands."""
        security = "insecure = true" if node_tls is None else f'root-certificates = "{node_tls[1]}"'
        write_atomically(
            self.home / "config.toml",
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f'address = "{HOST}:{port}"\n{security}\n',
        )

    def _spawn(self, role: str, port: int, arguments: list[str]) -> Started:
        """Start a process, and record it in place of the previous one with its role."""
        log = self.folder / "logs" / f"{role}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            process = subprocess.Popen(
                [command(arguments[0]), *arguments[1:]],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        created = psutil.Process(process.pid).create_time()
        one = Started(role, process.pid, created, str(log), port, arguments)
        values = self.read()
        others = [other for other in values["processes"] if other["role"] != role]
        self._write(values | {"processes": [*others, asdict(one)]})
        return one

    def _wait_for(self, one: Started) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if one.process() is None:
                raise InputError(f"the {one.role} ended immediately: see {one.log}")
            try:
                socket.create_connection((HOST, one.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.2)
        raise InputError(f"the {one.role} does not listen after {START_SECONDS:g} s: see {one.log}")

    def _write(self, values: Mapping[str, Any]) -> None:
        write_atomically(self.file, json.dumps(values, indent=2) + "\n")


def stop(started: Sequence[Started]) -> None:
    """Terminate processes and their children, and kill those that do not end."""
    processes: list[psutil.Process] = []
    for one in started:
        if process := one.process():
            processes += [process, *process.children(recursive=True)]
    for process in processes:
        _unless_gone(process.terminate)
    deadline = time.monotonic() + STOP_SECONDS
    while (left := [process for process in processes if _runs(process)]) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    for process in left:
        _unless_gone(process.kill)


def running(pid: int, created: float) -> psutil.Process | None:
    """The process with that number, if it has that start time and has not ended.

    A killed process keeps its number until its parent has waited for it.
    """
    try:
        process = psutil.Process(pid)
        return process if abs(process.create_time() - created) < 0.1 and _runs(process) else None
    except psutil.NoSuchProcess:
        return None


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _unless_gone(end: Callable[[], None]) -> None:
    try:
        end()
    except psutil.NoSuchProcess:
        return


def copy_app(folder: Path) -> None:
    """Copy the thin Flower app into a folder for `flwr run`."""
    packaged = Path(__file__).resolve().parent / "app"
    try:
        shutil.copytree(
            packaged, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    except OSError as problem:
        raise InputError(f"cannot write the Flower app to {folder}: {problem}") from None


def command(name: str) -> str:
    """The path of one of Flower's commands, beside this Python or on the PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise InputError(
            f"the command {name} is missing: install Flower with pip install 'pfedseq[flower]'"
        )
    return found


def free_ports(count: int) -> list[int]:
    """Ports that are currently free."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
