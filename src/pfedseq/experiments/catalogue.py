"""One entry per table and figure of the paper: which runs it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pfedseq.config import Config
from pfedseq.errors import InputError
from pfedseq.experiments import paper
from pfedseq.learners.variants import VARIANTS
from pfedseq.methods import METHODS, NEWER, PAPER, find_method

Kind = Literal["accuracy", "sweep", "seconds", "traffic", "curves", "partitions"]


@dataclass(frozen=True)
class Arm:
    """A line of a table: one method with some options."""

    key: str
    """The name of its folder. Arms with the same key share their runs across experiments."""
    title: str
    method: str
    overrides: tuple[str, ...] = ()
    group: str = ""
    paper_row: str | None = None
    """The row of the paper's table, or None."""
    value: int | None = None
    """L or W, in an experiment that varies it."""


@dataclass(frozen=True)
class Choice:
    """A selection of an experiment's parts; empty means all."""

    methods: tuple[str, ...] = ()
    values: tuple[int, ...] = ()
    yardsticks: bool = False
    """Whether to add pFedSeq without its parts, with momentum in their place, and with both."""


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper."""

    name: str
    title: str
    kind: Kind
    data_sets: tuple[str, ...]
    """The paper's data sets."""
    arms: Callable[[Config, Choice], list[Arm]]

    @property
    def takes_methods(self) -> bool:
        """Whether its rows are methods that can be selected."""
        return self.arms in (_methods, _one_round)

    @property
    def takes_values(self) -> bool:
        """Whether it varies L or W."""
        return self.kind == "sweep"


MOMENTUM = 0.8
"""The better of 0.5 and 0.8 on validation data with seed 100 (PACS and CIFAR-100 of the lab)."""
ALL = ("cifar100", "tiny_imagenet", "domainnet", "omniglot")


def _methods(config: Config, choice: Choice) -> list[Arm]:
    """The paper's thirteen methods in its order; or the chosen ones, others after them."""
    for name in choice.methods:
        find_method(name)
    groups = [*paper.groups(), ("Newer", NEWER)]
    known = {name for _, names in groups for name in names}
    groups.append(("Plug-ins", [name for name in choice.methods if name not in known]))
    wanted = choice.methods or PAPER
    lines = [
        Arm(name, METHODS[name].title, name, group=group, paper_row=name)
        for group, names in groups
        for name in names
        if name in wanted
    ]
    if choice.yardsticks:
        lines += [arm for arm in _yardsticks() if arm.method in ("pfedseq", *wanted)]
    return lines


def _yardsticks() -> list[Arm]:
    """What pFedSeq's learner and groups must be better than, and what else would add to them."""

    def arm(key: str, title: str, method: str = "pfedseq", **options: str) -> Arm:
        overrides = tuple(f"methods.{method}.{option}={value}" for option, value in options.items())
        title = f"{METHODS[method].title}, {title}"
        return Arm(f"{method}-{key}", title, method, overrides, "Yardsticks")

    alone = {"ablation": '"frozen"', "group_cosine": "0"}
    return [
        arm("mean", "the mean adapter alone", **alone),
        arm(
            "mean-momentum",
            f"the mean adapter alone with server momentum {MOMENTUM:g}",
            **alone,
            server_momentum=f"{MOMENTUM:g}",
        ),
        arm("frozen", "groups without a learner", ablation='"frozen"'),
        arm("no-groups", "a learner without groups", group_cosine="0"),
        arm("momentum", "and server momentum 0.5", server_momentum="0.5"),
        arm("groups", "with groups", "fedrep", group_cosine="0.3"),
    ]


def _one_round(config: Config, choice: Choice) -> list[Arm]:
    """The methods for a single round, which is enough to count bytes."""
    return [
        Arm(f"{arm.key}-one-round", arm.title, arm.method, ("run.rounds=1",), arm.group, arm.key)
        for arm in _methods(config, choice)
    ]


def _variants(table: int) -> Callable[[Config, Choice], list[Arm]]:
    def arms(config: Config, choice: Choice) -> list[Arm]:
        lines = []
        for variant in VARIANTS:
            if variant.option and variant.table == table:
                option, _, value = variant.option.partition(" = ")
                key = f"pfedseq-{variant.key}"
                title = f"{variant.letter}: {variant.meaning}"
                override = f"methods.pfedseq.{option}={value}"
                lines.append(Arm(key, title, "pfedseq", (override,), paper_row=variant.letter))
        return [*lines, Arm("pfedseq", "pFedSeq", "pfedseq", paper_row="pFedSeq")]

    return arms


def _varied(experiment: str, option: str, symbol: str) -> Callable[[Config, Choice], list[Arm]]:
    def arms(config: Config, choice: Choice) -> list[Arm]:
        values = choice.values or tuple(paper.swept_values(experiment))
        if option == "warmup_rounds":  # with a longer one the learner would never be used
            values = tuple(value for value in values if value < config.run.rounds)
        lines = [
            Arm(
                f"pfedseq-{symbol}{value}",
                f"{symbol} = {value}",
                "pfedseq",
                (f"methods.pfedseq.{option}={value}",),
                value=value,
            )
            for value in values
        ]
        return [*lines, Arm("pefll", "PeFLL (reference)", "pefll")]

    return arms


EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (
        Experiment("table1", "All methods on all data sets", "accuracy", ALL, _methods),
        Experiment(
            "table2",
            "pFedSeq without one of its components",
            "accuracy",
            ("cifar100", "domainnet"),
            _variants(2),
        ),
        Experiment(
            "table3",
            "pFedSeq with other learners",
            "accuracy",
            ("cifar100", "domainnet"),
            _variants(3),
        ),
        Experiment(
            "length",
            "Accuracy by the maximum sequence length L",
            "sweep",
            ("omniglot",),
            _varied("length", "max_sequence_length", "L"),
        ),
        Experiment(
            "warmup",
            "Accuracy by the number of warm-up rounds W",
            "sweep",
            ("domainnet",),
            _varied("warmup", "warmup_rounds", "W"),
        ),
        Experiment("time", "Seconds per round, and relative to Local", "seconds", ALL, _methods),
        Experiment(
            "communication", "Parameters and bytes, per round and total", "traffic", ALL, _one_round
        ),
        Experiment("curves", "Learning curves", "curves", ALL, _methods),
        Experiment(
            "partitions",
            "Data distribution: classes × clients",
            "partitions",
            ("cifar100", "tiny_imagenet"),
            lambda config, choice: [],
        ),
    )
}


def find_experiment(name: str, choice: Choice) -> Experiment:
    """The experiment of that name; refuses choices that it does not have."""
    if name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}: choose {', '.join(EXPERIMENTS)}")
    experiment = EXPERIMENTS[name]
    if choice.methods and not experiment.takes_methods:
        raise InputError(f"{name} is about pFedSeq alone: --methods does not apply to it")
    if choice.values and not experiment.takes_values:
        raise InputError(f"{name} varies no number: --values is for length and warmup")
    return experiment
