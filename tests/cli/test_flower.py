"""`pfedseq flower`: keys that fit, processes that are one's own, sentences for what is missing."""

import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.cli import app, flower_progress
from pfedseq.cli.flower_progress import ended, follow
from pfedseq.deployment.audit import Audit
from pfedseq.deployment.certificates import make_certificates
from pfedseq.deployment.loopback import CONNECTION, Loopback, Started, stop
from pfedseq.deployment.status import StatusFile
from pfedseq.errors import InputError


def call(*arguments):
    return CliRunner().invoke(app, ["flower", *map(str, arguments)])


def handshake(made, host):
    """A TLS connection with the SuperLink's certificate, checked against the authority."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(made.folder / "server.pem", made.folder / "server.key")
    client = ssl.create_default_context(cafile=str(made.authority))
    here, there = socket.socketpair()

    def serve():
        try:
            server.wrap_socket(there, server_side=True).close()
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(here, server_hostname=host).close()
    finally:
        here.close()
        thread.join()


def test_the_certificate_is_for_its_hosts_and_no_other(tmp_path):
    made = make_certificates(tmp_path, ["127.0.0.1", "link.example.org"], [])
    handshake(made, "127.0.0.1")
    handshake(made, "link.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made, "elsewhere.example.org")


def test_keys_are_private_and_never_replaced(tmp_path):
    assert call("keys", tmp_path, "--site", "clinic-a").exit_code == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    printed = call("keys", tmp_path, "--site", "clinic-a", "--site", "clinic-b").stdout
    assert str(tmp_path / "clinic-b.pub") in printed
    assert all((tmp_path / name).read_bytes() == content for name, content in before.items())
    for secret in ("ca.key", "server.key", "clinic-a.key", "clinic-b.key"):
        assert (tmp_path / secret).stat().st_mode & 0o077 == 0
    with pytest.raises(InputError, match="cannot be called"):
        make_certificates(tmp_path, ["127.0.0.1"], ["../clinic"])


def test_a_new_host_and_a_renewal_change_the_certificate_alone(tmp_path):
    made = make_certificates(tmp_path, ["link.example.org"], ["clinic-a"])
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert call("keys", tmp_path, "--host", "127.0.0.1").exit_code == 0, "it is always among them"
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    printed = call("keys", tmp_path, "--host", "new.example.org").stdout
    assert "is for link.example.org, 127.0.0.1, localhost, new.example.org" in printed
    for host in ("new.example.org", "link.example.org", "127.0.0.1"):
        handshake(made, host)
    changed = {f.name for f in tmp_path.iterdir() if f.read_bytes() != before[f.name]}
    assert changed == {"server.pem", "server.key"}
    pem = (tmp_path / "server.pem").read_bytes()
    assert call("keys", tmp_path, "--renew").exit_code == 0
    assert (tmp_path / "server.pem").read_bytes() != pem
    handshake(made, "new.example.org")
    (tmp_path / "ca.key").unlink()
    with pytest.raises(InputError, match=r"ca\.key is not readable"):
        make_certificates(tmp_path, ["third.example.org"], [])


def test_flower_takes_the_public_keys(tmp_path):
    from flwr.cli.supernode.register import try_load_public_key

    made = make_certificates(tmp_path, ["127.0.0.1"], ["clinic-a"])
    assert try_load_public_key(made.node_public_key("clinic-a"))


def sleeping():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    created = psutil.Process(process.pid).create_time()
    return process, Started("sleeper", process.pid, created, "log", 1, [])


def test_only_what_was_started_is_stopped():
    """A number that has been given to another process since is not touched."""
    process, started = sleeping()
    try:
        other = replace(started, created=started.created - 100)
        assert other.process() is None
        stop([other])
        assert process.poll() is None
        stop([started])
        assert process.wait(timeout=10) != 0
        assert started.process() is None
    finally:
        process.kill()


def test_a_server_that_died_without_a_word_is_noticed(tmp_path):
    process, started = sleeping()
    status = StatusFile(tmp_path)
    status.write("running", "round 1 has started", pid=started.pid, created=started.created)
    assert ended(status.read()) is None
    process.kill()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert ended(status.read()) == "the server was stopped during the run", "nobody waited for it"
    process.wait()
    assert ended(status.read()) == "the server was stopped during the run"
    status.write("finished", "all methods are done")
    assert ended(status.read()) is None


def test_a_run_that_has_not_begun_is_waited_for(tmp_path, monkeypatch, capsys):
    """For as long as Flower does not give it up; what an earlier run has left is not its word."""
    monkeypatch.setattr(flower_progress, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(flower_progress, "TELL_SECONDS", 0.05)
    (tmp_path / "config.toml").write_text("[run]\nrounds = 2\n")
    status = StatusFile(tmp_path)
    status.write("failed", "of an earlier run")
    asked = time.time()
    fates = iter([None, None, "Flower says finished:failed"])
    with pytest.raises(InputError, match="did not start: Flower says finished:failed"):
        follow(tmp_path, asked, lambda: next(fates))
    assert capsys.readouterr().err.count("waiting for Flower's server to start") == 2

    def fate():
        status.write("failed", "no room on the disk")
        return "Flower says finished:failed"

    with pytest.raises(InputError, match="no room on the disk"):
        follow(tmp_path, asked, fate)


def test_what_flower_says_of_a_run(tmp_path, monkeypatch):
    said = {}

    def flwr(self, *arguments):
        assert arguments[:4] == ("ls", CONNECTION, "--run-id", "7")
        return json.dumps(said)

    monkeypatch.setattr(Loopback, "flwr", flwr)
    federation = Loopback(tmp_path)
    for row, fate in (
        ({"status": "starting", "status-details": ""}, None),
        ({"status": "running", "status-details": ""}, None),
        (
            {"status": "finished:failed", "status-details": "no app"},
            "Flower says finished:failed no app",
        ),
    ):
        said.clear()
        said.update(success=True, runs=[row])
        assert federation.fate("7") == fate
    said.clear()
    said.update({"success": False, "error-message": "no such run"})
    assert federation.fate("7") == "the SuperLink does not know of it (no such run)"


def test_watching_ends_with_the_servers_own_sentence(tmp_path):
    (tmp_path / "config.toml").write_text("[run]\nrounds = 2\n")
    StatusFile(tmp_path).write("failed", "site clinic-a has other backbone weights")
    result = call("watch", tmp_path)
    assert isinstance(result.exception, InputError)
    assert "other backbone weights" in str(result.exception)


@pytest.mark.parametrize("command", ["down", "status"])
def test_there_is_no_federation_yet(command, tmp_path):
    result = call(command, "--folder", tmp_path / "none")
    assert "pfedseq flower up" in str(result.exception)


def test_the_audit_log_is_shown_whole_or_for_one_site(tmp_path):
    note = Audit(tmp_path)
    note("joined", "clinic-a", version="1")
    note("refused", "clinic-b", reason="NaN")
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"at": "cut o')
    lines = call("log", tmp_path).stdout.splitlines()
    assert [line.split()[1:] for line in lines] == [
        ["joined", "clinic-a", "version=1"],
        ["refused", "clinic-b", "reason=NaN"],
    ]
    assert len(call("log", tmp_path, "--site", "clinic-b").stdout.splitlines()) == 1
    missing = call("log", tmp_path / "none")
    assert "no federated run has started there" in str(missing.exception)


def test_a_federation_of_another_size_is_not_mixed_up(tmp_path):
    (tmp_path / "processes.json").write_text('{"sites": ["a", "b"], "runs": [], "processes": []}')
    assert "2 sites" in str(call("up", "--clients", 3, "--folder", tmp_path).exception)
    assert len(Loopback(tmp_path).sites()) == 2
    assert call("up", "--folder", tmp_path).exit_code == 0, "nothing has ended, nothing to start"


def test_a_rate_that_is_yet_to_be_found_is_refused_before_anything_is_submitted(tmp_path):
    (tmp_path / "processes.json").write_text('{"sites": ["a", "b"], "runs": [], "processes": []}')
    options = ("--set", "training.lr=auto", "--folder", tmp_path, "--out", tmp_path / "out")
    assert "set a number" in str(call("run", "demo", *options).exception)
    assert not (tmp_path / "submitted").exists()


def test_the_app_is_thin_and_flower_accepts_it(tmp_path):
    from flwr.cli.build import build_fab_from_disk

    assert call("app", tmp_path / "app").exit_code == 0
    assert len(build_fab_from_disk(tmp_path / "app")) < 20_000
    assert "already exists" in str(call("app", tmp_path / "app").exception)
