"""The server's side of a run whose clients are sites on other machines.

The server holds no data. The sites' hellos tell it how many examples each site has and of which
classes, which it records with the run. After an interruption it continues from its checkpoint with
the sites of the run that are online. A site that joins later is admitted between two rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

from pfedseq.config import Config, dump_config, load_config
from pfedseq.data.record import DataRecord
from pfedseq.deployment.audit import SUBMISSION, Audit
from pfedseq.deployment.clients import FlowerClients
from pfedseq.deployment.ledger import Ledger
from pfedseq.deployment.messages import Request
from pfedseq.deployment.roll import Guest, Roll
from pfedseq.deployment.status import StatusFile
from pfedseq.engines.states import ClientStates
from pfedseq.errors import InputError
from pfedseq.federation import Clients, Hello, Server, Setup
from pfedseq.files import refusing_company
from pfedseq.methods import find_method
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.auxiliary import AuxiliaryExamples
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.identity import MadeWith, digest, options_made_with
from pfedseq.runs.records import RoundRecord, RunSummary
from pfedseq.runs.run import run_method
from pfedseq.workloads import find_workload
from pfedseq.workloads.workload import Workload

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Federation:
    """Runs methods whose clients are on other machines; a `runs.run.Stage`."""

    config: Config
    ledger: Ledger
    roll: Roll
    first: Mapping[str, Hello]
    """The sites that took part when the run started."""
    classes: tuple[str, ...]
    workload: Workload

    @property
    def model(self) -> AdaptedModel:
        """The adapted model, with the same backbone as at the sites."""
        return self.workload.model

    @property
    def names(self) -> list[str]:
        """The names of all admitted sites, by number."""
        return list(self.roll.members or ())

    @property
    def device(self) -> torch.device:
        """The device of the server's tensors."""
        return self.model.device

    @cached_property
    def auxiliary(self) -> AuxiliaryExamples:
        """Unlabelled examples at the server, loaded when a method first needs them."""
        return self.workload.auxiliary()

    def made_with(self, name: str) -> MadeWith:
        """The settings that a method's results depend on, for its checkpoints."""
        sites = sites_record(self.config, self.first, self.first, self.classes)
        options = options_made_with(self.config, name, self.device)
        return options | {"sites and their data": digest(sites)}

    def start(
        self, name: str, states: ClientStates, places: Sequence[Path]
    ) -> tuple[Server, Clients]:
        """A method before round 1; memories and personal models stay at the sites."""
        method, options = find_method(name), self.config.method_config(name)
        request = replace(self.roll.request, method=name, classes=self.classes)
        seconds = self.config.flower.answer_seconds
        clients = FlowerClients(self.roll, request, seconds, self.device, self.ledger)
        every, conditions = self.config.run.checkpoint_every, self.config.federation
        clients.kept_at = lambda t: max(0, (t - 1) // every * every - every)
        model = self.model.widened(options.rank_blocks)
        setup = Setup(
            model.initial,
            tuple(hello.train_examples for hello in self.first.values()),
            self.config.run.rounds,
            self.config.run.seed,
            len(self.classes),
            self.auxiliary if method.needs_auxiliary else None,
            conditions.aggregation,
            conditions.trim,
            sketch_shape=self.workload.sketch_shape,
            factors=model.factors,
            max_weight=conditions.max_weight,
            name_of=lambda number: self.names[number],
        )
        return method.server(options, setup), clients


def serve(
    grid: Any,
    out: Path,
    config: Path | None,
    tell: Tell,
    pause: float = 0.05,
    accept: Sequence[str] = (),
) -> RunSummary:
    """Run a config into the folder `out`, or continue the run in it, over a Grid.

    The outcome is written to federation.json, because Flower itself does not report failures. The
    sites named in `accept` may continue from whatever memory they have.
    """
    with ExitStack() as held:
        try:
            folder, checked = _opened(out, config)
            held.enter_context(refusing_company(out))  # before it can change a live run's status
        except InputError as problem:
            if (out / "config.toml").exists():
                Audit(out)("refused", SUBMISSION, reason=str(problem))
            raise
        status = StatusFile(out)
        try:
            summary = _serve(grid, folder, checked, status, tell, pause, accept)
        except BaseException as problem:
            said = str(problem) if isinstance(problem, InputError) else repr(problem)
            status.write("failed", said)
            raise
        status.write("finished", "all methods are done")
    return summary


def _opened(out: Path, config: Path | None) -> tuple[RunFolder, Config]:
    """The run in `out`, or a new one of this config; refuses other options for an existing run."""
    folder = RunFolder(out)
    if folder.config.exists():
        if config is not None:
            folder.check_options(load_config(config).sized())
        return folder, load_config(folder.config)
    if config is None:
        raise InputError(f'{out} has no run to continue: set config="FILE.toml" as well')
    checked = load_config(config).sized()
    check_rate(checked)
    RunFolder.check_vacant(out)
    return RunFolder.create(out, dump_config(checked)), checked


def check_rate(config: Config) -> None:
    """Refuse a rate that is yet to be found."""
    if config.wants_rate:
        raise InputError(
            "training.lr = 'auto' tests rates on training data, which a server does not have: set "
            "a number; `pfedseq run` on one site's data finds one"
        )


def _serve(
    grid: Any,
    folder: RunFolder,
    config: Config,
    status: StatusFile,
    tell: Tell,
    pause: float,
    accept: Sequence[str],
) -> RunSummary:
    epsilon = config.privacy.spent(config.run.rounds, len(config.run.methods))
    if config.federation.late_clients or config.federation.leaving_clients:
        raise InputError(
            "federation.late_clients and leaving_clients only apply to simulations in one process; "
            "real sites may join at any time, and federation.gone_after decides when one has left"
        )
    data, audit = folder.read_data(), Audit(folder.path)
    begun = _members(data)
    ledger = Ledger(folder.path, begun is not None)
    run, me = ledger.run, psutil.Process()
    about = {"run": run, "pid": me.pid, "created": me.create_time(), "absent": []}
    status.write("gathering", "waiting for the sites", **about)
    request = Request(run, config.run.methods[0], "hello", 0, 0, 0, 0, dump_config(config), ())
    largest = 1e6 * config.flower.max_reply_mb
    roll = Roll(grid, request, pause, begun, note=audit, largest_reply=largest)
    for name in accept:
        if name not in (begun or {}):
            raise InputError(f"accept names {name}, which is not a site of this run")
        ledger.forget(name)
        audit("accepted", name, reason="the operator accepts whatever memory it has")
        tell(f"site {name} may continue from whatever memory it has")
    expected = len(begun) if begun else config.flower.sites or config.data.num_clients
    if expected is None:
        raise InputError("set the number of sites that take part, for example flower.sites = 3")

    def heard(sentence: str) -> None:
        status.write("gathering", sentence)
        tell(sentence)

    roll.gather(expected, config.flower.start_seconds, heard)
    assert roll.members is not None  # gathered
    first = dict(roll.members)
    if data is not None:
        first = {s["name"]: first[s["name"]] for s in data["clients"] if not s.get("joined")}
    classes = agreed_classes(first, config.flower.classes, tell)
    workload = find_workload(config.data).load(config, len(classes))
    checksum = workload.model.encoder.checksum()
    check_equipment(roll.guests.values(), checksum)
    folder.keep_data(sites_record(config, roll.members, first, classes))
    federation = Federation(config, ledger, roll, first, classes, workload)
    rounds = config.run.rounds

    def admit(guest: Guest) -> None:
        check_newcomer(guest, config, classes)
        check_equipment([guest], checksum)
        sites = {**(roll.members or {}), guest.card.name: guest.hello}
        folder.replace_data(sites_record(config, sites, first, classes))
        tell(f"site {guest.card.name} has joined")

    roll.admit = admit
    roll.check = lambda guest: check_equipment([guest], checksum)

    def after(record: RoundRecord) -> None:
        names = federation.names
        missing = {*record.absent, *record.refused}
        if record.scores is not None:
            missing |= set(range(len(names))) - set(record.scores.clients)
        absent = [names[i] for i in sorted(missing)]
        score = ""
        if record.scores is not None:
            headline = record.scores.measure
            score = f", {headline.title} {headline.format.with_unit(record.scores.client_mean)}"
        sentence = f"{record.method}: round {record.round} of {rounds}{score}"
        status.write("running", sentence, sites=names, absent=absent, problems=roll.problems)
        tell(sentence + (f"; absent: {', '.join(absent)}" if absent else ""))
        for name in absent:
            if name in roll.problems:
                tell(roll.problems[name])

    status.write("running", "round 1 has started", sites=federation.names)
    for name in config.run.methods:
        run_method(federation, folder, name, after, tell)
    return folder.write_summary(epsilon)


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
            'of one, or merge them by name with flower.classes = "merge"'
        )
    merged = tuple(sorted({c for one in hellos.values() for c in one.class_names}))
    tell(f"the sites' classes are merged by name: {len(merged)} in all")
    return merged


def check_equipment(guests: Iterable[Guest], checksum: str) -> None:
    """Refuse sites with another backbone or another version of pfedseq."""
    own = version("pfedseq")
    for guest in guests:
        card = guest.card
        if card.version != own:
            raise InputError(
                f"site {card.name} runs pfedseq {card.version}, but the server runs {own}: "
                "install the same version"
            )
        if card.backbone != checksum:
            raise InputError(
                f"site {card.name} has different backbone weights from the server: compare the "
                "files that model.backbone and the site's node config name"
            )


def check_newcomer(guest: Guest, config: Config, classes: Sequence[str]) -> None:
    """Refuse a site that joins too late, or whose classes the run does not have."""
    late = f"site {guest.card.name} was not part of the run at its start"
    if not config.flower.newcomers:
        raise InputError(f"{late}, and flower.newcomers is false: it is ignored")
    for name in config.run.methods:
        if why := find_method(name).server.needs_everyone:
            raise InputError(
                f"{late}, and {name} needs all sites from the first round on ({why}): it is ignored"
            )
    theirs = guest.hello.class_names
    unknown = sorted(set(theirs) - set(classes))
    if unknown or (config.flower.classes == "same" and theirs != tuple(classes)):
        what = f"images of {', '.join(unknown)}" if unknown else "other classes or another order"
        raise InputError(f"{late}, and has {what}: it is ignored until its folders are renamed")


def sites_record(
    config: Config,
    sites: Mapping[str, Hello],
    first: Collection[str],
    classes: Sequence[str],
) -> DataRecord:
    """The content of partition.json for a federation: counts instead of a local run's indices.

    Sites that were not among the `first` are marked.
    """
    hellos = sites.values()
    described = [
        {
            "name": name,
            "train": hello.train_examples,
            "validation": hello.validation_examples,
            "test": hello.test_examples,
            "class_names": list(hello.class_names),
            **({} if name in first else {"joined": True}),
        }
        for name, hello in sites.items()
    ]
    total = sum(h.train_examples + h.validation_examples + h.test_examples for h in hellos)
    return {
        "data": config.data.name,
        "num_images": total,
        "images_sha256": None,
        "labels_sha256": None,
        "class_names": list(classes),
        "notes": [],
        "clients": described,
    }


def _members(record: DataRecord | None) -> dict[str, Hello] | None:
    """The sites of a run that has started, with their hellos; None before."""
    if record is None:
        return None
    return {
        site["name"]: Hello(
            site["train"], site["validation"], site["test"], tuple(site["class_names"])
        )
        for site in record["clients"]
    }
