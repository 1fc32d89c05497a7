"""`pfedseq predict`, `evaluate`, `export` and `import`: using the clients' models."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pfedseq.cli.options import EXIT_BAD_INPUT, ConfigName, Plugins, load_plugins
from pfedseq.errors import InputError

if TYPE_CHECKING:
    from pfedseq.workloads.dialogue.generation import Writing
    from pfedseq.workloads.personal import PersonalModel

Models = Annotated[
    Path,
    typer.Argument(
        metavar="RUN", help="Folder of a finished run, of an export, or of a PEFT adapter."
    ),
]
Client = Annotated[
    str | None,
    typer.Option("--client", "-c", help="Name of the client, e.g. mill, or its number from 0."),
]
MethodName = Annotated[
    str | None,
    typer.Option("--method", "-m", help="Method whose models are used. Default: the run's first."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def predict(
    run: Models,
    examples: Annotated[
        list[str],
        typer.Argument(metavar="EXAMPLE...", help="Files, folders or patterns; texts in quotes."),
    ],
    client: Client = None,
    method: MethodName = None,
    top: Annotated[
        int | None, typer.Option(min=1, help="Number of classes to show per example. Default: 1.")
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Language models: longest answer in tokens. Default: 64."),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0, help="Language models: 0 (default) is greedy, 1 samples from the model."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Language models: seed of the samples, e.g. 1.")
    ] = None,
    as_json: AsJson = False,
    plugin: Plugins = None,
) -> None:
    """Classify images or texts, or answer prompts, with a client's personal model.

    Examples:

    - `pfedseq predict runs/tiles --client mill photo.jpg`

    - `pfedseq predict runs/tiles --client mill 'new/**/*.jpg' --top 3 --json`

    - `pfedseq predict exported/mill photo.jpg`

    - `pfedseq predict runs/notes --client anna "More salt in the soup." letters/*.txt`

    - `pfedseq predict runs/llm-demo --client baden "alcohol 13.2" --temperature 0.7 --seed 1`
    """
    from pfedseq.cli.model_tables import print_predictions
    from pfedseq.report.progress import StepDisplay
    from pfedseq.serving.client_models import ClientModels
    from pfedseq.serving.prediction import Prediction, WrittenAnswer, answer_found, predict_found
    from pfedseq.workloads import find_kind

    load_plugins(plugin)
    models = ClientModels.open(run, method)
    index = models.find(client)
    model = models.load(index)
    unit = model.reader.unit
    how = _writing(model, top, max_new_tokens, temperature, seed)
    named, found, problems = [], [], []
    for example in examples:  # a missing file does not prevent the other predictions
        try:
            named += find_kind(unit).find([example])
        except InputError as missing:
            problems.append(missing)
    with StepDisplay() as display:
        outcomes: Iterable[Prediction | WrittenAnswer | InputError]
        if how is None:
            outcomes = predict_found(model, named, top or 1, display.report)
        else:
            outcomes = answer_found(model, named, how, display.report)
        for outcome in outcomes:
            if isinstance(outcome, InputError):
                problems.append(outcome)
            else:
                found.append(outcome)
    if as_json:
        whose = {"client": models.names[index], "method": models.method}
        print(
            json.dumps([whose | one.to_json(unit) for one in found], indent=2, ensure_ascii=False)
        )
    elif found:
        print_predictions(found)
    for problem in problems:
        print(f"pfedseq: {problem}", file=sys.stderr)
    if problems:
        raise typer.Exit(EXIT_BAD_INPUT)


def _writing(
    model: PersonalModel,
    top: int | None,
    max_new_tokens: int | None,
    temperature: float | None,
    seed: int | None,
) -> Writing | None:
    """How a language model is to write; None of a model that names classes."""
    from pfedseq.workloads import find_kind
    from pfedseq.workloads.dialogue.generation import Writing

    how = {"--max-new-tokens": max_new_tokens, "--temperature": temperature, "--seed": seed}
    if find_kind(model.reader.unit).generates:
        if top is not None:
            raise InputError("--top applies to classifiers, not to a language model: leave it out")
        usual = Writing()
        return Writing(
            usual.max_new_tokens if max_new_tokens is None else max_new_tokens,
            usual.temperature if temperature is None else temperature,
            usual.seed if seed is None else seed,
        )
    for option, value in how.items():
        if value is not None:
            raise InputError(
                f"{option} applies to language models, not to a classifier: leave it out"
            )
    return None


def evaluate(
    run: Models,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Images in a folder for each class; texts, also as a CSV file; or dialogues."
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", "-c", help="Name of a client; repeatable. Default: all."),
    ] = None,
    method: MethodName = None,
    as_json: AsJson = False,
    plugin: Plugins = None,
) -> None:
    """Evaluate clients' models on labelled examples or on their own test data.

    Examples:

    - `pfedseq evaluate runs/tiles --client mill --data photos/quarry`

    - `pfedseq evaluate runs/tiles` (all clients, each on its test data in the run)
    """
    from pfedseq.cli.model_tables import print_evaluations
    from pfedseq.report.progress import StepDisplay
    from pfedseq.serving.client_models import ClientModels
    from pfedseq.serving.evaluation import OwnTestData, evaluate_on
    from pfedseq.workloads import find_kind

    load_plugins(plugin)
    models = ClientModels.open(run, method)
    chosen = [models.find(name) for name in client] if client else range(len(models.places))
    with StepDisplay() as display:
        own = OwnTestData(run) if data is None else None
        labelled = None
        found = {}
        for index in chosen:
            name, model = models.names[index], models.load(index)
            if own is not None:
                found[name] = own.evaluate(model, name, display.report)
            else:
                assert data is not None
                labelled = labelled or find_kind(model.reader.unit).labelled(data)
                found[name] = evaluate_on(model, labelled, display.report)
    if as_json:
        described = {name: result.to_json() for name, result in found.items()}
        print(json.dumps(described, indent=2, ensure_ascii=False))
    else:
        print_evaluations(found)


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a finished run.")],
    to: Annotated[Path, typer.Option(help="Folder to write to; one subfolder per client.")],
    client: Annotated[
        list[str] | None, typer.Option("--client", "-c", help="Name of a client; repeatable.")
    ] = None,
    everyone: Annotated[bool, typer.Option("--all", help="Export all clients.")] = False,
    method: MethodName = None,
    merge: Annotated[
        bool,
        typer.Option("--merge", help="Also write a full checkpoint with the adapter merged in."),
    ] = False,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Also write an ONNX file; needs `pfedseq[onnx]`.")
    ] = False,
    with_backbone: Annotated[
        bool, typer.Option("--with-backbone", help="Write the backbone even if it is on the hub.")
    ] = False,
    plugin: Plugins = None,
) -> None:
    """Export clients' models as folders that transformers and PEFT load, with model cards.

    Examples:

    - `pfedseq export runs/tiles --all --to exported`

    - `pfedseq export runs/tiles --client mill --to exported --merge --onnx`
    """
    from pfedseq.report.progress import StepDisplay
    from pfedseq.runs.folder import RunFolder
    from pfedseq.serving.client_models import ClientModels
    from pfedseq.serving.export import export_models

    if bool(client) == everyone:
        raise InputError("choose the models to export: --client NAME, or --all")
    if not RunFolder(run).config.exists():
        raise InputError(f"{run} is not a run: it has no config.toml")
    load_plugins(plugin)
    models = ClientModels.open(run, method)
    chosen = range(len(models.places)) if everyone else [models.find(one) for one in client or ()]
    with StepDisplay() as display:
        folders = export_models(
            models,
            chosen,
            to,
            with_backbone=with_backbone,
            merge=merge,
            onnx=onnx,
            report=display.report,
        )
    for folder in folders:
        print(folder)


def import_(
    adapter: Annotated[Path, typer.Argument(help="A PEFT folder: LoRA, DoRA or IA3.")],
    config: ConfigName,
    to: Annotated[Path, typer.Option(help="TOML file to write, e.g. mine.toml.")],
    head: Annotated[
        bool, typer.Option("--head", help="Also start from its head; requires the same classes.")
    ] = False,
) -> None:
    """Write a config in which all clients start from an existing PEFT adapter.

    Example: `pfedseq import tuned-elsewhere lab/pacs --to mine.toml`, then `pfedseq run mine.toml`
    """
    from pfedseq.config import dump_config, load_config
    from pfedseq.files import write_atomically
    from pfedseq.serving.importing import import_adapter

    if to.exists():
        raise InputError(f"{to} already exists: choose another --to")
    made = import_adapter(adapter, load_config(config), head=head)
    write_atomically(to, dump_config(made))
    tuned = made.adapter
    size = "" if tuned.kind == "ia3" else f" of rank {tuned.rank}"
    print(f"{tuned.kind}{size} on {', '.join(tuned.targets)} of {made.model.backbone}")
    print(f"{to}: start with `pfedseq run {to}`")
