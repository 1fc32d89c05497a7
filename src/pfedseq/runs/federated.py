"""A run whose clients are sites on other machines: the server's side of it.

The server holds no data. It learns from the sites' hellos how many examples each has and of which
classes, and writes that down with the run; when it was cut off it goes on from its checkpoint with
those of the same sites that are there.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

from pfedseq.config import Config, dump_config, load_config
from pfedseq.data.auxiliary import load_auxiliary
from pfedseq.data.record import DataRecord
from pfedseq.engines.attendance import IntermittentClients
from pfedseq.engines.flower.clients import FlowerClients, Guest, Roll, in_order
from pfedseq.engines.flower.records import Request
from pfedseq.engines.states import ClientStates
from pfedseq.errors import InputError
from pfedseq.federation import Clients, Hello, Server, Setup
from pfedseq.files import refusing_company
from pfedseq.methods import find_method
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.auxiliary import AuxiliaryExamples, auxiliary_images
from pfedseq.model.backbone import Backbone
from pfedseq.model.image_source import ImageSource
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.identity import MadeWith, digest, options_made_with
from pfedseq.runs.records import RoundRecord, RunSummary
from pfedseq.runs.run import run_method
from pfedseq.runs.site import backbone_checksum
from pfedseq.runs.status import StatusFile
from pfedseq.runs.world import load_model

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Federation:
    """Where a method is run when its clients are elsewhere; a `runs.run.Stage`."""

    config: Config
    run: str
    roll: Roll
    names: list[str]
    hellos: tuple[Hello, ...]
    classes: tuple[str, ...]
    backbone: Backbone
    model: AdaptedModel

    @property
    def device(self) -> torch.device:
        """Where the server's tensors live."""
        return self.model.device

    @cached_property
    def auxiliary(self) -> AuxiliaryExamples:
        """Unlabelled images at the server, loaded when a method first needs them."""
        size, seed, backbone = self.config.data.image_size, self.config.run.seed, self.backbone
        images = load_auxiliary(self.config.auxiliary, size, seed)
        source = ImageSource(images, backbone.mean, backbone.std, self.device)
        return auxiliary_images(self.model, source, size, seed)

    def made_with(self, name: str) -> MadeWith:
        """What a method's numbers depend on, for its checkpoints."""
        sites = sites_record(self.config, self.names, self.hellos, self.classes)
        options = options_made_with(self.config, name, self.device)
        return options | {"sites and their data": digest(sites)}

    def start(
        self, name: str, states: ClientStates, places: Sequence[Path]
    ) -> tuple[Server, Clients]:
        """A method before round 1; memories and personal models stay at the sites."""
        method, options = find_method(name), self.config.method_config(name)
        request = replace(self.roll.request, method=name, classes=self.classes)
        clients = FlowerClients(
            self.roll, self.names, request, self.config.flower.answer_seconds, self.device
        )
        every, conditions = self.config.run.checkpoint_every, self.config.federation
        clients.kept_at = lambda t: max(0, (t - 1) // every * every - every)
        setup = Setup(
            self.model.initial,
            tuple(hello.train_examples for hello in self.hellos),
            self.config.run.rounds,
            self.config.run.seed,
            len(self.classes),
            self.auxiliary if method.needs_auxiliary else None,
            conditions.aggregation,
            conditions.trim,
        )
        some = IntermittentClients(clients, conditions, self.config.run.seed)
        return method.server(options, setup), some


def serve(grid: Any, out: Path, config: Path | None, tell: Tell, pause: float = 0.3) -> RunSummary:
    """Run a config into the folder `out`, or go on with the run that is there, over a Grid.

    However it ends is written to federation.json: Flower itself reports no failure.
    """
    folder, status = RunFolder(out), StatusFile(out)
    if folder.config.exists():
        checked = load_config(folder.config)
    elif config is None:
        raise InputError(f'{out} holds no run to go on with: give config="FILE.toml" as well')
    else:
        checked = load_config(config)
        RunFolder.check_vacant(out)
        folder = RunFolder.create(out, dump_config(checked))
    try:
        with refusing_company(out):
            summary = _serve(grid, folder, checked, status, tell, pause)
    except BaseException as problem:
        said = str(problem) if isinstance(problem, InputError) else repr(problem)
        status.write("failed", said)
        raise
    status.write("finished", "all methods are done")
    return summary


def _serve(
    grid: Any, folder: RunFolder, config: Config, status: StatusFile, tell: Tell, pause: float
) -> RunSummary:
    if config.privacy.noise is not None:
        raise InputError(
            "[privacy] is simulated in one process only, its noise follows from the run's seed: "
            "leave privacy.noise out of a federation of real sites"
        )
    run = status.read().get("run") or uuid.uuid4().hex
    me = psutil.Process()
    about = {"run": run, "pid": me.pid, "created": me.create_time(), "absent": []}
    status.write("gathering", "waiting for the sites", **about)
    request = Request(run, config.run.methods[0], "hello", 0, 0, 0, 0, dump_config(config), ())
    begun = _members(folder.read_data())
    roll = Roll(grid, request, pause, begun)
    expected = len(begun) if begun else config.flower.sites or config.data.num_clients
    if expected is None:
        raise InputError("say how many sites take part: flower.sites = 3")

    def heard(sentence: str) -> None:
        status.write("gathering", sentence)
        tell(sentence)

    roll.gather(expected, config.flower.start_seconds, heard)
    assert roll.members is not None  # gathered
    names = in_order(roll.members)
    hellos = tuple(roll.members[name] for name in names)
    classes = agreed_classes(dict(zip(names, hellos, strict=True)), config.flower.classes, tell)
    backbone, model = load_model(config, len(classes))
    check_equipment(roll.guests.values(), model)
    folder.keep_data(sites_record(config, names, hellos, classes))
    federation = Federation(config, run, roll, names, hellos, classes, backbone, model)
    rounds = config.run.rounds

    def after(record: RoundRecord) -> None:
        there = set(range(len(names))) - set(record.absent)
        if record.scores is not None:
            there &= set(record.scores.clients)
        absent = [name for i, name in enumerate(names) if i not in there]
        score = f", accuracy {record.scores.client_mean:.4f}" if record.scores else ""
        sentence = f"{record.method}: round {record.round} of {rounds}{score}"
        status.write("running", sentence, absent=absent)
        tell(sentence + (f"; absent: {', '.join(absent)}" if absent else ""))

    status.write("running", "round 1 has begun", sites=names)
    for name in config.run.methods:
        run_method(federation, folder, name, after, tell)
    return folder.write_summary()


def agreed_classes(hellos: Mapping[str, Hello], rule: str, tell: Tell) -> tuple[str, ...]:
    """The federation's classes, in the order of the logits."""
    (first, hello), *others = hellos.items()
    differing = [(name, other) for name, other in others if other.class_names != hello.class_names]
    if not differing:
        return hello.class_names
    name, other = differing[0]
    only = sorted(set(hello.class_names) ^ set(other.class_names))
    if rule == "same":
        what = f"only one of them has {', '.join(only)}" if only else "in another order"
        raise InputError(
            f"sites {first} and {name} do not have the same classes ({what}): rename the folders "
            'of one, or let them be merged by name with flower.classes = "merge"'
        )
    merged = tuple(sorted({c for one in hellos.values() for c in one.class_names}))
    tell(f"the sites' classes are merged by name: {len(merged)} in all")
    return merged


def check_equipment(guests: Iterable[Guest], model: AdaptedModel) -> None:
    """Refuse sites that would compute something else: another backbone, another pfedseq."""
    mine, own = backbone_checksum(model), version("pfedseq")
    for guest in guests:
        card = guest.card
        if card.version != own:
            raise InputError(
                f"site {card.name} runs pfedseq {card.version} and the server {own}: "
                "install the same"
            )
        if card.backbone != mine:
            raise InputError(
                f"site {card.name} has other backbone weights than the server: compare the files "
                "that model.backbone and the site's node config name"
            )


def sites_record(
    config: Config, names: Sequence[str], hellos: Sequence[Hello], classes: Sequence[str]
) -> DataRecord:
    """What partition.json holds of a federation: counts, where a run in one place has indices."""
    sites = [
        {
            "name": name,
            "train": hello.train_examples,
            "validation": hello.validation_examples,
            "test": hello.test_examples,
            "class_names": list(hello.class_names),
        }
        for name, hello in zip(names, hellos, strict=True)
    ]
    total = sum(h.train_examples + h.validation_examples + h.test_examples for h in hellos)
    return {
        "data": config.data.name,
        "num_images": total,
        "images_sha256": None,
        "labels_sha256": None,
        "class_names": list(classes),
        "notes": [],
        "clients": sites,
    }


def _members(record: DataRecord | None) -> dict[str, Hello] | None:
    """The sites of a run that has begun, as they introduced themselves then."""
    if record is None:
        return None
    return {
        site["name"]: Hello(
            site["train"], site["validation"], site["test"], tuple(site["class_names"])
        )
        for site in record["clients"]
    }
