"""`pfedseq flower`: a federation on this machine for trying it out, and what real ones need."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from pfedseq.cli.flower_progress import AGAIN, await_attempt, ended, follow, submit
from pfedseq.cli.options import EXIT_INTERRUPTED, ConfigName, Overrides, Rounds, assignments
from pfedseq.errors import InputError

app = typer.Typer(
    help="Run across machines with Flower; `up`, `run`, `status` and `down` try it on this one.",
    no_args_is_help=True,
)
Folder = Annotated[
    Path, typer.Option(help="Folder of the federation, with keys, logs and one folder per site.")
]
Methods = Annotated[
    list[str] | None,
    typer.Option("--method", "-m", help="Run only this method, e.g. pfedseq; repeatable."),
]
DEFAULT_FOLDER = Path("federation")


@app.callback()
def _needs_flower() -> None:
    if find_spec("flwr") is None:
        raise InputError("this needs Flower: pip install 'pfedseq[flower]'")


@app.command()
def up(
    clients: Annotated[
        int | None, typer.Option(min=1, help="Number of sites to start. Default: 3.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    secure: Annotated[
        bool, typer.Option("--secure", help="Use TLS and require sites to be registered.")
    ] = False,
) -> None:
    """Start a federation on this machine: a SuperLink and several sites.

    It listens on 127.0.0.1 only and runs until `pfedseq flower down`. If the folder already holds a
    federation, its stopped processes are started again.

    Examples:

    - `pfedseq flower up --clients 4`

    - `pfedseq flower up --clients 3 --secure --folder /tmp/three-sites`
    """
    from pfedseq.deployment.loopback import Loopback

    federation = Loopback(folder)
    if federation.file.exists():
        count = len(federation.sites())
        if clients not in (None, count):
            raise InputError(
                f"{folder} holds a federation of {count} sites: choose another --folder for "
                f"{clients}"
            )
        sentences = federation.start_again()
    else:
        count = clients or 3
        sentences = federation.start(count, secure)
    for sentence in sentences:
        print(f"pfedseq: {sentence}", file=sys.stderr)
    print(f"{count} sites are up; now: pfedseq flower run demo --rounds 3{_where(folder)}")


@app.command()
def down(folder: Folder = DEFAULT_FOLDER) -> None:
    """Stop the processes that `pfedseq flower up` started; files are kept.

    Example: `pfedseq flower down`
    """
    from pfedseq.deployment.loopback import Loopback

    stopped = Loopback(folder).stop()
    print(f"stopped: {', '.join(one.role for one in stopped) or 'nothing was running'}")


@app.command()
def status(folder: Folder = DEFAULT_FOLDER) -> None:
    """Show the processes of a federation on this machine and the state of its runs.

    Example: `pfedseq flower status`
    """
    from rich.table import Table

    from pfedseq.deployment.loopback import Loopback
    from pfedseq.deployment.status import StatusFile
    from pfedseq.report.console import console

    federation = Loopback(folder)
    table = Table("process", "number", "since", "log")
    for one in federation.started():
        since = f"{datetime.fromtimestamp(one.created):%H:%M:%S}" if one.process() else "ended"
        table.add_row(one.role, str(one.pid), since, one.log)
    console.print(table)
    for out in federation.read()["runs"]:
        how = StatusFile(Path(out)).read()
        absent = f"; absent: {', '.join(how['absent'])}" if how.get("absent") else ""
        state, sentence = how.get("state", "not begun"), how.get("sentence", "")
        print(f"{out}: {ended(how) or state}: {sentence}{absent}")


@app.command()
def run(
    config: ConfigName,
    method: Methods = None,
    rounds: Rounds = None,
    out: Annotated[
        Path | None, typer.Option(help="Results folder. Default: runs/NAME-DATE-TIME.")
    ] = None,
    folder: Folder = DEFAULT_FOLDER,
    overrides: Overrides = None,
) -> None:
    """Run a config on the federation that `pfedseq flower up` started, and watch it.

    Site k holds client k of the config's data. Ctrl-C stops watching, not the run.

    Examples:

    - `pfedseq flower run demo --rounds 3`

    - `pfedseq flower run demo --method pfedseq --set flower.answer_seconds=60`
    """
    from pfedseq.config import dump_config, load_config
    from pfedseq.deployment.loopback import Loopback
    from pfedseq.deployment.server import check_rate
    from pfedseq.files import write_atomically

    federation = Loopback(folder)
    count = len(federation.sites())
    values = [f"data.num_clients={count}", f"flower.sites={count}"]
    values += assignments(overrides, rounds, None, None)
    if method:
        values.append(f"run.methods=[{', '.join(json.dumps(name) for name in method)}]")
    checked = load_config(config, values)
    check_rate(checked)
    now = f"{datetime.now():%Y%m%d-%H%M%S}"
    place = (out or Path("runs") / f"{checked.run.name}-{now}").absolute()
    if (place / "config.toml").exists():
        raise InputError(
            f"{place} already holds a run; continue it with `pfedseq flower resume {place}`"
        )
    submitted = federation.folder / "submitted" / f"{now}.toml"
    write_atomically(submitted, dump_config(checked))
    submit(federation, place, submitted)


@app.command()
def resume(
    out: Annotated[Path, typer.Argument(help="Results folder of an interrupted run.")],
    folder: Folder = DEFAULT_FOLDER,
    accept: Annotated[
        list[str] | None,
        typer.Option(help="Site that may continue although its memory is lost; repeatable."),
    ] = None,
) -> None:
    """Continue a federation's run from its last checkpoint with the sites that are online.

    Examples:

    - `pfedseq flower resume runs/demo-20250101-120000`

    - `pfedseq flower resume runs/demo-20250101-120000 --accept site-1`
    """
    from pfedseq.deployment.loopback import Loopback

    if not (out / "config.toml").exists():
        raise InputError(f"{out} is not a run: it has no config.toml")
    submit(Loopback(folder), out.absolute(), None, accept or [])


@app.command()
def watch(
    out: Annotated[Path, typer.Argument(help="Results folder of a federation's run.")],
) -> None:
    """Watch a federation's run on the SuperLink's machine until it ends.

    If the last attempt has ended, it waits a while for a new one.

    Example: `pfedseq flower watch results`
    """
    from pfedseq.deployment.status import StatusFile

    try:
        await_attempt(StatusFile(out))
        follow(out.absolute(), 0.0, lambda: None, AGAIN)
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


@app.command()
def log(
    out: Annotated[Path, typer.Argument(help="Results folder of a federation's run.")],
    site: Annotated[str | None, typer.Option(help="Show this site alone.")] = None,
) -> None:
    """Show which sites joined, answered, were silent or were refused, and when.

    Example: `pfedseq flower log results --site clinic-a`
    """
    from pfedseq.deployment.audit import Audit

    for event in Audit(out).events():
        if site in (None, event["site"]):
            rest = {k: v for k, v in event.items() if k not in ("at", "event", "site")}
            more = " ".join(f"{key}={value}" for key, value in rest.items())
            print(f"{event['at']}  {event['event']:9} {event['site']:14} {more}")


@app.command()
def site(
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink, or of its proxy.")],
    name: Annotated[str, typer.Option(help="This site's name.")],
    state: Annotated[
        Path,
        typer.Option(help="The site's own folder, for its client's state and personal models."),
    ],
    data: Annotated[
        Path | None,
        typer.Option(help="A folder of images by class, or a TOML file with a [data] section."),
    ] = None,
    partition: Annotated[
        int | None, typer.Option(min=0, help="For trials: client k of the run's own data set.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="The authority's certificate, ca.crt.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Without TLS; for trials on one machine.")
    ] = False,
    key: Annotated[
        Path | None, typer.Option(help="The site's private key; its public key is registered.")
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(help="Path of the backbone at this site, if it differs from the run's."),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. Default: the best available.")
    ] = None,
) -> None:
    """Run a site: answer a federation's messages with this machine's own data, until stopped.

    It replaces Flower's SuperNode and runs no app: it executes only the steps of the installed
    pfedseq.

    Examples:

    - `pfedseq flower site --superlink link.example.org:9092 --root-certificates ca.crt
    --key clinic-a.key --name clinic-a --data images --state state`

    - `pfedseq flower site --superlink 127.0.0.1:9092 --insecure --name a --partition 0 --state a`
    """
    from functools import partial

    from pfedseq.deployment.node import Link, run_node
    from pfedseq.deployment.site_app import answer_here
    from pfedseq.deployment.site_config import SiteConfig

    if insecure == (root_certificates is not None):
        raise InputError("give either --root-certificates ca.crt, or --insecure for a trial")
    given = {"name": name, "state": str(state.absolute()), "partition-id": partition}
    given |= {"data": str(data) if data else None, "backbone": backbone, "device": device}
    mine = SiteConfig.read({k: v for k, v in given.items() if v is not None}, {})
    link = Link(superlink, root_certificates, key)
    run_node(link, name, partial(answer_here, mine), lambda s: print(s, flush=True))


@app.command(name="app")
def write_app(
    folder: Annotated[Path, typer.Argument(help="New folder for the Flower app.")],
) -> None:
    """Write the Flower app that `flwr run` takes into a folder.

    Example: `pfedseq flower app pfedseq-app`
    """
    from pfedseq.deployment.loopback import copy_app

    if folder.exists():
        raise InputError(f"{folder} already exists: choose another name")
    copy_app(folder)
    print(folder)


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="Folder for certificates and keys.")],
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the SuperLink; repeatable.")
    ] = None,
    site: Annotated[
        list[str] | None, typer.Option(help="Site to create a key for; repeatable.")
    ] = None,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew", help="Issue a new certificate for the SuperLink, valid for a year."
        ),
    ] = False,
) -> None:
    """Create a certificate authority, the SuperLink's certificate and a key per site.

    Existing keys are kept, so sites can be added later. A new --host, or --renew, issues another
    certificate for the SuperLink from the same authority: restart the SuperLink afterwards.

    Examples:

    - `pfedseq flower keys certificates --host link.example.org --site clinic-a`

    - `pfedseq flower keys certificates --renew`
    """
    from pfedseq.deployment.certificates import make_certificates

    made = make_certificates(folder, host or [], site or [], renew)
    for file in sorted(folder.iterdir()):
        print(file)
    print(f"the SuperLink's certificate is for {', '.join(made.hosts())}")


@app.command()
def proxy(
    folder: Annotated[Path, typer.Argument(help="A folder for the proxy's config and logs.")],
    certificates: Annotated[
        Path, typer.Option(help="The folder that `pfedseq flower keys` made.")
    ] = Path("certificates"),
    listen: Annotated[
        str, typer.Option(help="ADDRESS:PORT that the sites reach.")
    ] = "0.0.0.0:9092",
    superlink: Annotated[
        str, typer.Option(help="HOST:PORT of the SuperLink on this machine.")
    ] = "127.0.0.1:9091",
) -> None:
    """Write an nginx config that exposes only the SuperLink's interface for sites.

    Example: `pfedseq flower proxy proxy --listen 0.0.0.0:9092 --superlink 127.0.0.1:9091`
    """
    from pfedseq.deployment.proxy import write_proxy

    path = write_proxy(folder, certificates, listen, superlink)
    print(f"{path}: start it with nginx -c {path}")


def _where(folder: Path) -> str:
    return "" if folder == DEFAULT_FOLDER else f" --folder {folder}"
