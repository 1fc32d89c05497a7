"""The server app: pfedseq's round loop over Flower's Grid."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Start or continue the run that the run config names."""
    from pfedseq.deployment.server import serve

    config, out = (str(context.run_config[key]) for key in ("config", "out"))
    if not out:
        raise SystemExit("pfedseq: set the folder for the results: --run-config 'out=\"/folder\"'")
    accept = [name for name in str(context.run_config.get("accept", "")).split(",") if name]
    serve(
        grid,
        Path(out),
        Path(config) if config else None,
        lambda s: print(f"pfedseq: {s}"),
        accept=accept,
    )
