"""Against a real SuperLink: an app of somebody else's, and sites that lie or lose their memory."""

import json
import signal
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.deployment.audit import Audit
from pfedseq.deployment.loopback import CONNECTION
from pfedseq.runs.folder import RunFolder

pytestmark = pytest.mark.slow

APP = """
[project]
name = "foreign"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "foreign.both:server"
clientapp = "foreign.both:client"
[tool.flwr.app.config]
out = ""
"""
BOTH = """
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@client.train()
def steal(message, context):
    Path(context.run_config["out"] + ".stolen").write_text("it ran")
    return Message(RecordDict({"images": ConfigRecord({"bytes": b"1"})}), reply_to=message)


@server.main()
def main(grid, context):
    content = RecordDict({"fields": ConfigRecord({"step": "train", "run": "import os"})})
    asked = [Message(content, node, "train", ttl=120) for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(asked, timeout=60))
    said = [f"{r.error.code} {r.error.reason}" if r.has_error() else "CONTENT" for r in replies]
    Path(context.run_config["out"]).write_text("\\n".join(said))
"""


def test_an_app_of_somebody_elses_gets_nothing_from_a_site(deployed, tmp_path):
    """Submitted from the inside, past the proxy: the sites run none of its code."""
    deployment = deployed()
    (tmp_path / "app" / "foreign").mkdir(parents=True)
    (tmp_path / "app" / "pyproject.toml").write_text(APP)
    (tmp_path / "app" / "foreign" / "__init__.py").touch()
    (tmp_path / "app" / "foreign" / "both.py").write_text(BOTH)
    said = tmp_path / "said"
    out = f'out="{said}"'
    deployment.loopback.flwr("run", str(tmp_path / "app"), CONNECTION, "--run-config", out)
    deployment.wait(said.exists)
    answers = said.read_text().splitlines()
    assert len(answers) == 2
    assert all(answer.startswith("2 a message has no 'payload'") for answer in answers), answers
    assert not (tmp_path / "said.stolen").exists()


BAD_SITE = """
import sys

from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from pfedseq.cli import main
from pfedseq.deployment import node
from pfedseq.deployment.envelope import Envelope

troubles = iter(["", "", "another kind", "stopped upload", "too large", "forged"])
answered, send_honestly = node.answered, node._send
trouble = ""


def answer(message, *rest):
    global trouble
    trouble = next(troubles, "")
    print(f"TROUBLE {trouble}", flush=True)
    reply = answered(message, *rest)
    if trouble == "too large":
        honest = Envelope.of_records(reply.content)
        large = Envelope(honest.fields, honest.payload + bytes(6_000_000))
        return Message(large.to_records(), reply_to=message)
    return reply


def send(reply, run, seconds, send, push_object):
    if trouble == "another kind":
        record = RecordDict()
        reply.metadata.__dict__["_message_id"] = record.object_id
        _, session = send(reply, get_object_tree(record), seconds)
        push_object(run, session, record.object_id, record.deflate())
    elif trouble == "stopped upload":
        reply.metadata.__dict__["_message_id"] = reply.object_id
        send(reply, get_object_tree(reply), seconds)
    elif trouble == "forged":  # the head is true, the message behind it is not
        known, true = reply.metadata.__dict__, reply.metadata.reply_to_message_id
        known["_reply_to_message_id"] = "0" * 64
        parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
        tree = get_object_tree(reply)
        known.update(_message_id=reply.object_id, _reply_to_message_id=true)
        _, session = send(reply, tree, seconds)
        for name, part in parts.items():
            push_object(run, session, name, part)
    else:
        send_honestly(reply, run, seconds, send, push_object)


node.answered, node._send = answer, send
sys.exit(main())
"""


def test_a_site_that_lies_to_the_superlink_costs_nobody_else_a_round(deployed, tmp_path):
    """Its key is registered, its client ours; what it uploads is not what Flower expects."""
    deployment = deployed(answer_seconds=20, max_reply_mb=5, sites=2)
    (honest,) = [one for one in deployment.loopback.started() if one.role == "site-1"]
    honest.process().send_signal(signal.SIGINT)
    honest.process().wait()
    (tmp_path / "bad.py").write_text(BAD_SITE)
    options = honest.arguments[honest.arguments.index("flower") :]
    with (tmp_path / "bad.log").open("wb") as log:
        bad = subprocess.Popen(
            [sys.executable, str(tmp_path / "bad.py"), *options],
            env=deployment.loopback.environment(),
            stdout=log,
            stderr=log,
        )
    try:
        done = deployment.pfedseq("run", deployment.config, "--out", deployment.out, check=False)
    finally:
        bad.terminate()
        bad.wait()
    said = (tmp_path / "bad.log").read_text()
    assert done.returncode == 0, done.stderr + said
    assert "TROUBLE forged" in said
    records = RunFolder(deployment.out).records()
    assert all(0 in record.scores.clients for record in records)
    assert all(0 not in record.absent for record in records)
    reasons = [e["reason"] for e in Audit(deployment.out).events() if e["event"] == "refused"]
    assert any("its reply is not a message but a RecordDict" in reason for reason in reasons)
    assert any("larger than 5 MB" in reason for reason in reasons)
    assert 1 in records[-1].scores.clients, "once it behaves, it takes part again"


def listed(deployment):
    return json.loads(deployment.loopback.flwr("ls", CONNECTION, "--format", "json"))["runs"]


def test_a_lost_memory_is_accepted_by_name_once_the_run_is_stopped(deployed, tmp_path):
    """As in the guide: what `watch` and `log` say, `flwr stop`, then resume with --accept."""
    deployment = deployed(answer_seconds=30)
    watch = deployment.begin("run", deployment.config, "--out", deployment.out, "--rounds", 60)
    deployment.wait(lambda: deployment.rounds() >= 1)
    memory = tmp_path / "federation" / "sites" / "site-1"
    for file in memory.glob("*/pfedseq/memory/*.safetensors"):
        file.unlink()
    deployment.wait(lambda: "is lost" in deployment.pfedseq("log", deployment.out).stdout)
    (number,) = [run["run-id"] for run in listed(deployment)]
    deployment.loopback.flwr("stop", str(number), CONNECTION)
    assert watch.wait(timeout=120) == 2
    assert "the server was stopped during the run" in (tmp_path / "watch.log").read_text()
    (deployment.out / "federation.json").unlink()
    done = deployment.pfedseq("resume", deployment.out, "--accept", "site-1")
    assert "pFedSeq" in done.stdout
    events = list(Audit(deployment.out).events())
    assert [e["site"] for e in events if e["event"] == "accepted"] == ["site-1"]
    assert RunFolder(deployment.out).records()[-1].absent == ()
