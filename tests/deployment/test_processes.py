"""A real deployment on this machine: SuperLink, sites, TLS, keys, and processes that die."""

import os
import signal

import psutil
import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq import make_config, run
from pfedseq.config import dump_config
from pfedseq.deployment.server import serve
from pfedseq.deployment.status import StatusFile
from pfedseq.runs.folder import RunFolder
from tests.deployment.configured_sites import assert_same, digits_sites, models, without_seconds
from tests.deployment.grid import InProcessGrid
from tests.deployment.processes import TINY, kill

pytestmark = pytest.mark.slow


def test_bits_survive_tls_keys_and_the_death_of_every_process_in_turn(deployed, tmp_path):
    here = tmp_path / "here"
    run(make_config(TINY), here)
    deployment = deployed("--secure")
    watch = deployment.begin("run", deployment.config, "--out", deployment.out)

    # A site's node and all that it has started die in the middle of an exchange, and come back.
    deployment.wait(lambda: deployment.rounds() >= 1)
    before = deployment.heard("site-1")
    deployment.wait(lambda: deployment.heard("site-1") > before)
    kill(deployment.process("site-1"))
    deployment.pfedseq("up")

    # The ServerApp dies in the middle of the next: the watcher says so, and resuming goes on.
    deployment.wait(lambda: deployment.rounds() >= 2)
    before = deployment.heard("site-0")
    deployment.wait(lambda: deployment.heard("site-0") > before)
    os.kill(StatusFile(deployment.out).read()["pid"], signal.SIGKILL)
    assert watch.wait(timeout=120) == 2
    assert "the server was stopped during the run" in (tmp_path / "watch.log").read_text()
    watch = deployment.begin("resume", deployment.out)

    # The SuperLink dies with the ServerApp that it runs; it knows its sites afterwards.
    deployment.wait(lambda: deployment.rounds() >= 3)
    before = deployment.heard("site-0")
    deployment.wait(lambda: deployment.heard("site-0") > before)
    kill(deployment.process("superlink"))
    assert watch.wait(timeout=120) == 2
    deployment.pfedseq("up")
    done = deployment.pfedseq("resume", deployment.out)
    assert "pFedSeq" in done.stdout
    assert "finished" in deployment.pfedseq("status").stdout

    assert without_seconds(deployment.out) == without_seconds(here)
    assert_same(deployment.models(), models(*sorted((here / "adapters" / "pfedseq").iterdir())))


def test_an_answer_that_comes_late_is_not_used_and_its_training_is_kept(deployed, tmp_path):
    """As on a grid that drops the site's scores of round 1 and its update of round 2."""
    reference = tmp_path / "reference"
    reference.mkdir()
    long = {"training": {"local_epochs": 30}}  # long enough to be suspended in it
    written = dump_config(make_config(TINY | long | {"flower": {"answer_seconds": 2}}))
    (reference / "run.toml").write_text(written)
    sites = digits_sites(reference)
    sites[1].faults = [None, None, "late"]  # hello, round 1, then training in vain
    serve(InProcessGrid(sites), reference / "out", reference / "run.toml", print, pause=0.0)

    deployment = deployed(answer_seconds=15)
    site = deployment.process("site-1")
    watch = deployment.begin(
        "run",
        deployment.config,
        "--out",
        deployment.out,
        "--set",
        "methods.pfedseq.local_epochs=30",
    )
    deployment.wait(lambda: deployment.heard("site-1", ": asked to train") >= 2, pause=0.005)
    site.suspend()
    deployment.wait(lambda: deployment.heard("site-0", ": asked to train") >= 3)
    site.resume()
    assert watch.wait(timeout=900) == 0, (tmp_path / "watch.log").read_text()
    records = RunFolder(deployment.out).records()
    assert [record.absent for record in records] == [(), (1,), (), (), ()]
    assert [set(record.scores.clients) for record in records] == [{0}] + [{0, 1}] * 4
    assert deployment.kept("site-1") == [f"{t:06d}-000" for t in (2, 3, 4, 5)]
    expected = reference / "site1" / StatusFile(reference / "out").read()["run"] / "pfedseq"
    assert_same(deployment.models()[1:], models(expected / "model"))


def test_a_site_that_does_not_answer_is_absent_and_returns(deployed):
    deployment = deployed(answer_seconds=15)
    watch = deployment.begin("run", deployment.config, "--out", deployment.out)
    deployment.wait(lambda: deployment.rounds() >= 1)
    silent = [deployment.process("site-1")]
    silent += silent[0].children(recursive=True)
    for one in silent:
        one.suspend()
    deployment.wait(lambda: deployment.rounds() >= 3)  # it may have trained for round 3 already
    for one in silent:
        if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
            one.resume()
    assert watch.wait(timeout=600) == 0
    records = RunFolder(deployment.out).records()
    assert any(record.absent == (1,) for record in records)
    assert records[-1].absent == (), "it came back and trained"


def test_what_flower_does_not_say_is_said(deployed):
    """A client that fails at every site: Flower exits with 0, we with one sentence and 2."""
    deployment = deployed()
    done = deployment.pfedseq(
        "run", deployment.config, "--out", deployment.out,
        "--set", "data.max_images_per_client=4", "--set", "data.validation_fraction=0.9",
        check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("pfedseq:")
