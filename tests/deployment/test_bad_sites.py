"""Against a real SuperLink: an app of somebody else's, and sites that lie or lose their memory."""

import json
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr", reason="the Flower engine needs the extra: pip install pfedseq[flower]")

from pfedseq.deployment.audit import Audit
from pfedseq.deployment.loopback import CONNECTION, HOST, Loopback, command, free_ports
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
STEALING = """
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


def write_app(folder, code):
    (folder / "foreign").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(APP)
    (folder / "foreign" / "__init__.py").touch()
    (folder / "foreign" / "both.py").write_text(code)
    return folder


def test_an_app_of_somebody_elses_gets_nothing_from_a_site(deployed, tmp_path):
    """Submitted from the inside, past the proxy: the sites run none of its code."""
    deployment = deployed()
    app, said = write_app(tmp_path / "app", STEALING), tmp_path / "said"
    deployment.loopback.flwr("run", str(app), CONNECTION, "--run-config", f'out="{said}"')
    deployment.wait(said.exists)
    answers = said.read_text().splitlines()
    assert len(answers) == 2
    assert all(answer.startswith("2 a message has no 'payload'") for answer in answers), answers
    assert not (tmp_path / "said.stolen").exists()


ASKING = """
import json
import time
from pathlib import Path

from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.mailbox import Mailbox
from pfedseq.deployment.posting import Node, push

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    box, told = Mailbox(grid, 1e6), []
    while len(nodes := [info.node_id for info in grid.get_nodes()]) < 2:
        time.sleep(0.2)
    for t in range(6):
        asked = Envelope({"step": "train", "round": t}, b"")
        ids = push(grid, [(Node(node, "", ""), asked) for node in nodes], 60.0)
        deadline, said = time.monotonic() + 20, dict.fromkeys(ids, "silence")
        while "silence" in said.values() and time.monotonic() < deadline:
            for answer in box.collect([name for name in ids if said[name] == "silence"]):
                sound = answer.envelope
                said[answer.to] = answer.reason if sound is None else sound.payload.decode()
            time.sleep(0.1)
        told.append(sorted(said.values()))
    Path(context.run_config["out"]).write_text(json.dumps(told))
"""
SITE = """
import sys

from flwr.app import Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from pfedseq.deployment import node
from pfedseq.deployment.envelope import Envelope

address, name, *troubles = sys.argv[1:]
troubles = iter(troubles)
answered, send_honestly = node.answered, node._send
trouble = ""


def answer(message, *rest):
    global trouble
    trouble = next(troubles, "")
    reply = answered(message, *rest)
    if trouble == "large":
        return Message(Envelope({}, bytes(3_000_000)).to_records(), reply_to=message)
    return reply


def send(reply, run, seconds, send, push_object):
    metadata = reply.metadata.__dict__
    if trouble == "record":  # a part of a message in place of the message
        record = RecordDict()
        metadata["_message_id"] = record.object_id
        _, session = send(reply, get_object_tree(record), seconds)
        push_object(run, session, record.object_id, record.deflate())
    elif trouble == "stops":
        metadata["_message_id"] = reply.object_id
        send(reply, get_object_tree(reply), seconds)
    elif trouble == "forged":  # the head is true, the message behind it names another one
        true = reply.metadata.reply_to_message_id
        metadata["_reply_to_message_id"] = "0" * 64
        parts = {part: held.deflate() for part, held in get_all_nested_objects(reply).items()}
        tree = get_object_tree(reply)
        metadata.update(_message_id=reply.object_id, _reply_to_message_id=true)
        _, session = send(reply, tree, seconds)
        for part, content in parts.items():
            push_object(run, session, part, content)
    else:
        send_honestly(reply, run, seconds, send, push_object)


node.answered, node._send = answer, send
node.run_node(node.Link(address, None, None), name, lambda e: Envelope({}, name.encode()), print)
"""


def test_a_site_that_lies_to_the_superlink_keeps_no_other_answer_back(tmp_path):
    """What it uploads is not what Flower expects; each time the honest site's answer arrives."""
    here, (port,) = Loopback(tmp_path), free_ports(1)
    here.write_connection(port, None)
    started = []

    def start(log, *arguments):
        with (tmp_path / log).open("wb") as file:
            env = here.environment()
            started.append(subprocess.Popen(arguments, env=env, stdout=file, stderr=file))

    try:
        link = [command("flower-superlink"), "--insecure", "--host", HOST, "--port", str(port)]
        start("link.log", *link)
        wait_until(lambda: "running on" in (tmp_path / "link.log").read_text())
        (tmp_path / "site.py").write_text(SITE)
        for name, *troubles in (["honest"], ["liar", "", "record", "stops", "large", "forged"]):
            script = str(tmp_path / "site.py")
            start(f"{name}.log", sys.executable, script, f"{HOST}:{port}", name, *troubles)
        app = write_app(tmp_path / "app", ASKING)
        here.flwr("run", str(app), CONNECTION, "--run-config", f'out="{tmp_path}/told"')
        wait_until((tmp_path / "told").exists)
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(timeout=30)
    first, record, stops, large, forged, last = json.loads((tmp_path / "told").read_text())
    assert first == forged == last == ["honest", "liar"]
    assert record == ["honest", "its reply is not a message but a RecordDict"]
    assert stops == ["honest", "silence"]
    assert large[0] == "honest"
    assert large[1].startswith("its reply is larger than 1 MB (flower.max_reply_mb): ")


def wait_until(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


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
