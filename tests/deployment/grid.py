"""A Flower Grid in this process: real messages and records, sites of one's own, faults on order."""

import random

import torch
from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from pfedseq.deployment.clients import FlowerClients
from pfedseq.deployment.envelope import Envelope
from pfedseq.deployment.messages import Request
from pfedseq.deployment.roll import Roll
from pfedseq.deployment.site_folder import Equipment, SiteFolder, answer_envelope
from pfedseq.errors import InputError

CPU = torch.device("cpu")


class Site:
    """A site and its node: `number` and `activated` change when it restarts."""

    def __init__(self, name, path, equip, number, registered=""):
        self.name, self.folder, self.equip = name, SiteFolder(path), equip
        self.number, self.registered, self.starts = number, registered, 1
        self.online = True
        self.faults = []
        """Of the next messages: `lost`, `crash`, `late` or None, in order."""
        self.heard = []

    def reply(self, content):
        asked = Envelope.of_records(content)
        return answer_envelope(asked, self.name, self.folder, self.equip).to_records()

    def restart(self, number=None):
        self.number, self.starts, self.online = number or self.number, self.starts + 1, True

    def info(self):
        return NodeInfo(
            node_id=self.number,
            name=self.registered,
            status="online" if self.online else "offline",
            last_activated_at=f"{self.starts:03d}",
        )


class InProcessGrid(Grid):
    """Every message becomes bytes and back; replies come in a random order, some of them later."""

    def __init__(self, sites, seed=0):
        self.sites, self.rng = sites, random.Random(seed)
        self.replies, self.count = {}, 0
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as Flower does

    def set_run(self, run): ...

    @property
    def run(self): ...

    def create_message(self, *args, **kwargs): ...

    def send_and_receive(self, messages, *, timeout=None): ...

    def get_node_ids(self):
        return [site.number for site in self.sites if site.online]

    def get_nodes(self):
        return [site.info() for site in self.sites]

    def push_messages(self, messages):
        assert isinstance(messages, list), "Flower goes over the messages twice"
        return [self._push(message) for message in messages]

    def _push(self, message):
        self.count += 1
        name = f"message {self.count}"
        message.metadata.__dict__["_message_id"] = name
        (site,) = [s for s in self.sites if s.number == message.metadata.dst_node_id]
        site.heard.append(message)
        fault = site.faults.pop(0) if site.faults else None
        if fault == "before":
            site.online = False
        elif fault == "crash":
            self.replies[name] = Message(Error(8, "killed"), reply_to=message)
        else:
            reply = self._reply(site, message)
            if fault == "lost":
                site.online = False
            elif fault != "late":
                self.replies[name] = reply
        return name

    def _reply(self, site, message):
        try:
            content = site.reply(sent(message.content))
        except InputError as problem:
            return Message(Error(2, f"<class 'X'>:<'{problem}'>"), reply_to=message)
        return Message(sent(content), reply_to=message)

    def pull_messages(self, message_ids):
        there = [name for name in message_ids if name in self.replies]
        self.rng.shuffle(there)
        some = there[: self.rng.randint(min(1, len(there)), len(there))]
        return [self.replies.pop(name) for name in some]


def sent(content):
    """What arrives of a record after Flower's own serialisation."""
    contents = {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
    return inflate_object_from_contents(content.object_id, contents)


def federation(folder, method, config, sites, names=None, payload="float32"):
    """Sites in folders of their own around toy sites, and a grid to reach them."""

    def equipped(site):
        return lambda request, place: Equipment(
            method.client, config, site, CPU, "weights", "1", payload
        )

    return [
        Site(name, folder / name, equipped(site), number=100 + i)
        for i, (name, site) in enumerate(zip(names or "abcdefgh", sites, strict=False))
    ]


def request(method="toy"):
    return Request("r", method, "hello", 0, 0, 0, 0, "", ())


def connect(grid, expected, seconds=1.0, members=None, tell=lambda sentence: None, admit=None):
    roll = Roll(grid, request(), pause=0.0, members=members, admit=admit)
    roll.gather(expected, seconds, tell)
    return FlowerClients(roll, request(), seconds)
