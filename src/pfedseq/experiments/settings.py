"""The settings of experiments, and how they differ from the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pfedseq.config import Config, load_config
from pfedseq.errors import InputError
from pfedseq.experiments.paper import data_set_title
from pfedseq.words import some


@dataclass(frozen=True)
class Scenario:
    """A data set in some setting."""

    name: str
    config: str
    """A preset, or the path of a config file."""
    stands_for: str | None
    """The paper's data set to compare with, or None."""
    overrides: tuple[str, ...] = ()
    """Overrides of the config, in the form of --set."""
    label: str = ""
    """Its title, if it is neither its name nor the paper's."""

    @property
    def title(self) -> str:
        """The title in tables: the paper's name, and the data set used instead."""
        if self.label:
            return self.label
        if self.stands_for is None or self.name == self.stands_for:
            return data_set_title(self.name)
        return f"{self.name.upper()} (for {data_set_title(self.stands_for)})"

    def load(self, overrides: Sequence[str] = ()) -> Config:
        """Its config, with values overridden as --set does."""
        return load_config(self.config, (*self.overrides, *overrides))


_FAMILIES = {
    "paper": tuple(
        Scenario(name, name, name)
        for name in ("cifar100", "tiny_imagenet", "domainnet", "omniglot")
    ),
    "lab": (
        Scenario("cifar100", "lab/cifar100", "cifar100"),
        Scenario("tiny_imagenet", "lab/tiny_imagenet", "tiny_imagenet"),
        Scenario("pacs", "lab/pacs", "domainnet"),
        Scenario("omniglot", "lab/omniglot", "omniglot"),
        Scenario("cifar100_much", "lab/cifar100_much", None, label="CIFAR-100, much data"),
        Scenario("digits_groups", "lab/digits_groups", None, label="Digits, four scanners"),
        Scenario(
            "cifar100_partial",
            "lab/cifar100",
            None,
            ("federation.participation=0.3",),
            "CIFAR-100, 3 of 10 clients per round",
        ),
    ),
    "demo": (Scenario("digits", "demo", None),),
}
SETTINGS = tuple(_FAMILIES)


def find_scenarios(
    setting: str, wanted: Sequence[str], paper_data_sets: Sequence[str]
) -> list[Scenario]:
    """The selected data sets of a setting; by default the paper's.

    A setting is `paper`, `lab`, `demo` or the path of a config file. A data set has its own name or
    that of the paper's data set which it replaces.
    """
    if setting.endswith(".toml"):
        known: Sequence[Scenario] = [Scenario(load_config(setting).run.name, setting, None)]
    elif setting in _FAMILIES:
        known = _FAMILIES[setting]
    else:
        raise InputError(
            f"there is no preset {setting!r} to reproduce in: choose {', '.join(SETTINGS)}, "
            "or the path of a .toml file"
        )
    if not wanted:
        return [s for s in known if s.stands_for in paper_data_sets] or list(known)
    chosen = []
    for name in wanted:
        found = [s for s in known if name in (s.name, s.stands_for)]
        if not found:
            there = some([s.name for s in known])
            raise InputError(f"--dataset {name!r} is not in the preset {setting}: it has {there}")
        if found[0] not in chosen:
            chosen.append(found[0])
    return chosen


_COMPARED = {
    "data.name": "data set",
    "data.num_clients": "clients",
    "data.max_images_per_client": "images per client at most",
    "data.train_fraction": "part of the images not for testing",
    "data.image_size": "pixels per side",
    "model.backbone": "backbone",
    "adapter.kind": "adapter",
    "adapter.layers": "layers with an adapter",
    "adapter.rank": "rank",
    "adapter.alpha": "LoRA's α",
    "run.rounds": "rounds",
    "training.lr": "learning rate",
    "training.local_epochs": "local epochs",
    "training.batch_size": "batch size",
    "training.examples_per_round": "examples a client trains on in a round",
    "training.head_lr": "learning rate of the heads",
    "training.rate_units": "units of the rates",
    "training.max_step": "bound on steps",
    "training.head": "heads",
    "methods.pfedseq.warmup_rounds": "warm-up rounds W",
    "methods.pfedseq.max_sequence_length": "maximum sequence length L",
}


def differences(config: Config, scenario: Scenario) -> list[str]:
    """The differences of a config from the paper, as `what: ours (paper: theirs)`."""
    if scenario.stands_for is None:
        return ["the paper has no such data set: there is nothing to compare with"]
    ours, theirs = (
        c.model_copy(update={"run": c.run.model_copy(update={"methods": ("pfedseq",)})})
        .resolved()
        .model_dump(mode="json")
        for c in (config, load_config(scenario.stands_for))
    )
    lines = []
    for path, called in _COMPARED.items():
        mine, paper = _at(ours, path), _at(theirs, path)
        if mine != paper:
            mine, paper = ("all" if value is None else value for value in (mine, paper))
            lines.append(f"{called}: {mine} (paper: {paper})")
    return lines


def _at(values: Any, path: str) -> Any:
    for key in path.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values
