"""The model card of an exported model: its description, scores and code to load it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pfedseq.config import read_config
from pfedseq.measures import find_measure
from pfedseq.methods import METHODS
from pfedseq.runs.folder import RunFolder
from pfedseq.runs.records import evaluated
from pfedseq.runs.scores import Scores
from pfedseq.words import count, some
from pfedseq.workloads import find_kind
from pfedseq.workloads.kinds import ExportCard, Kind
from pfedseq.workloads.personal import PersonalModel

CITATION = """\
@inproceedings{peng2025look,
  title     = {Look Back for More: Harnessing Historical Sequential Updates for Personalized
               Federated Adapter Tuning},
  author    = {Peng, Danni and Wang, Yuan and Fu, Huazhu and Jiang, Jinpeng and Liu, Yong and
               Goh, Rick Siow Mong and Wei, Qingsong},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  year      = {2025}
}"""

MOST_NAMES = 12
"""Maximum number of classes that a card lists by name."""


def model_card(personal: PersonalModel, base: str, facts: Mapping[str, str], folder: str) -> str:
    """Markdown with the front matter that model hubs read; `facts` are rows of its table."""
    client, adapter = str(personal.about.get("client", folder)), personal.model.adapter_config
    kind = find_kind(personal.reader.unit)
    published = kind.is_published(personal.model.encoder) and not base.startswith("..")
    card, imports = _kind_card(kind, personal, base, folder, published)
    front = ["---", "library_name: peft", f"pipeline_tag: {card.task}"]
    if published:
        front.append(f"base_model: {json.dumps(base)}")
    tags = (adapter.kind, *card.tags, "personalized-federated-learning")
    front += ["tags:", *(f"- {tag}" for tag in tags), "---"]
    where = (
        f"The backbone is `{base}` on the Hugging Face hub."
        if published
        else f"The backbone is the folder `{base}`, relative to this one: keep them together."
    )
    named = some([repr(name) for name in personal.class_names], MOST_NAMES)
    classes = f"{count(len(personal.class_names), 'class')}: {named}."
    tuned = "An adapter and a head" if personal.class_names else "An adapter"
    parts = [
        "\n".join(front),
        f"# The personal model of {_cell(client)}",
        f"{tuned} for {card.what}, tuned by personalised federated learning for one client.",
        "\n".join(["| | |", "|---|---|", *(f"| {k} | {_cell(v)} |" for k, v in facts.items())]),
        *([classes] if personal.class_names else []),
        "## Use",
        f"{where} It needs only Transformers and PEFT:",
        f"```python\n{imports}{card.code}\n```",
        f"Or `pfedseq predict {folder} {card.example}`.",
        "## Citation",
        f"```bibtex\n{CITATION}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def run_facts(run: RunFolder, personal: PersonalModel) -> dict[str, str]:
    """The origin and scores of a client's model, as rows of the card's table."""
    about, adapter = personal.about, personal.model.adapter_config
    config = read_config(run.config)
    name, number = str(about["method"]), int(about["number"])
    known = METHODS.get(name)
    tuned = f"{adapter.kind} on {', '.join(adapter.targets)}"
    if adapter.kind != "ia3":
        tuned += f", rank {adapter.rank}, alpha {adapter.alpha:g}"
    facts = {
        "method": f"{known.title}: {known.summary}" if known else name,
        "adapter": f"{tuned}; backbone layers {', '.join(map(str, personal.model.layout.layers))}",
        "backbone": Path(personal.model.encoder.name).name
        if Path(personal.model.encoder.name).is_absolute()
        else personal.model.encoder.name,
        "rounds, seed": f"{config.run.rounds}, {config.run.seed}",
        "options": ", ".join(
            f"{key} = {value}" for key, value in config.methods.get(name, {}).items()
        ),
    }
    if (data := run.read_data()) is not None:
        held = data["clients"][number]
        facts[f"{personal.reader.unit}s"] = (
            f"{data['data']}: {len(held['train']):,} training, {len(held['validation']):,} "
            f"validation, {len(held['test']):,} test"
        )
    if (scored := _final_scores(run, name)) is not None and number in scored.clients:
        place, headline = scored.clients.index(number), scored.measure
        for measure, column in ((find_measure(name), c) for name, c in scored.test.items()):
            if (value := column[place]) is not None:
                facts[f"test {measure.title}"] = measure.format.with_unit(value)
        mean = headline.format.with_unit(scored.client_mean)
        facts["test examples"] = f"{scored.test_examples[place]:,}"
        facts[f"mean test {headline.title} of all clients"] = mean
    return facts


def _final_scores(run: RunFolder, method: str) -> Scores | None:
    """The scores of the saved models or, during a run, of the last evaluation."""
    if (assessment := run.read_assessment(method)) is not None:
        return assessment.scores
    scored = evaluated(run.by_method().get(method, []))
    return scored[-1][1] if scored else None


def _kind_card(
    kind: Kind, personal: PersonalModel, base: str, folder: str, published: bool
) -> tuple[ExportCard, str]:
    """The kind's part of the card, and the path of the backbone in its code."""
    few = len(personal.class_names) <= MOST_NAMES
    names = (
        f"[{', '.join(map(_quoted, personal.class_names))}]"
        if few
        else 'json.loads((folder / "personal_model.json").read_text())["class_names"]'
    )
    backbone = _quoted(base) if published else f"folder / {_quoted(base)}"
    return kind.card(personal, backbone, names, _quoted(folder)), "" if few else "import json\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
