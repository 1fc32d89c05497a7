"""A real deployment on this machine, as a user calls it: SuperLink and sites as processes."""

import subprocess
import sys
import time

from pfedseq import make_config
from pfedseq.config import dump_config
from pfedseq.deployment.loopback import Loopback
from pfedseq.deployment.status import StatusFile
from pfedseq.runs.folder import RunFolder
from tests.deployment.configured_sites import models

TINY = {
    "run": {"methods": ["pfedseq"], "rounds": 5},
    "data": {"name": "digits", "num_clients": 2, "max_images_per_client": 24},
    "methods": {"pfedseq": {"warmup_rounds": 1}},
    "engine": {"clients_per_pass": 1, "device": "cpu"},
}


class Deployment:
    """`pfedseq flower` in a folder of its own, as a user calls it."""

    def __init__(self, folder, **flower):
        self.folder, self.out = folder, folder / "out"
        self.config = folder / "run.toml"
        self.config.write_text(dump_config(make_config(TINY | {"flower": flower})))
        self.loopback = Loopback(folder / "federation")

    def pfedseq(self, *arguments, check=True):
        done = subprocess.run(
            [sys.executable, "-m", "pfedseq", "flower", *map(str, arguments)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert not check or done.returncode == 0, done.stderr + done.stdout
        return done

    def begin(self, *arguments):
        """A command in the background: a run that is watched."""
        with (self.folder / "watch.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "pfedseq", "flower", *map(str, arguments)],
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def rounds(self):
        return len(RunFolder(self.out).records())

    def wait(self, condition, seconds=600, pause=0.3):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, (self.folder / "watch.log").read_text()
            time.sleep(pause)

    def process(self, role):
        (one,) = [one for one in self.loopback.started() if one.role == role]
        return one.process()

    def heard(self, role, line=": asked to "):
        """How many messages a site has begun to work on."""
        log = self.folder / "federation" / "logs" / f"{role}.log"
        return log.read_text().count(line)

    def kept(self, role):
        """The rounds and exchanges of which a site remembers the end."""
        run_name = StatusFile(self.out).read()["run"]
        memory = self.folder / "federation" / "sites" / role / run_name / "pfedseq" / "memory"
        return sorted(file.stem for file in memory.glob("*.safetensors"))

    def models(self):
        run_name = StatusFile(self.out).read()["run"]
        return models(*(site / run_name / "pfedseq" / "model" for site in self.loopback.sites()))


def kill(process):
    """SIGKILL, as if the machine had lost power: nobody is told."""
    for one in [process, *process.children(recursive=True)]:
        one.kill()
