"""How much there is to win by personalising adapters beyond their mean: a look with hindsight.

    python benchmarks/personal_part.py lab/pacs --seed 100 --set model.backbone=vit_tiny.safetensors

pFedSeq is run twice: with a learner that is never trained (every client gets the mean adapter), and
as it is. After the last round each client is evaluated, under the head it has then, on the mean
adapter plus so many times a personal direction: after the first run the sum of its last L updates
less the mean client's (where plain drift would take it), and where an owner was cut into several
clients (`data.split_owners`) that of the owner's other clients; after the second the personal part
of its calibration ξ_i. 0 times is the mean adapter, 1 time of the second is what pFedSeq sends.
Client means of accuracy in % and loss on validation images.
"""

import argparse
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from pfedseq.config import load_config
from pfedseq.engines.rounds import RoundOutcome, run_rounds
from pfedseq.federation import Clients
from pfedseq.methods.pfedseq import PFedSeqServer
from pfedseq.params import weighted_mean
from pfedseq.runs.world import World

TIMES = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)


def less_the_mean(of_clients: Tensor, server: PFedSeqServer) -> Tensor:
    """What each client's (N, K, D) has of its own."""
    return of_clients - weighted_mean(of_clients, server.setup.num_examples)


def of_the_same_owner(own: Tensor, names: Sequence[str]) -> Tensor | None:
    """Of each client the mean over its owner's other clients (N, K, D), where all have such."""
    owners = [name.rpartition("-")[0] for name in names]  # "sketch-1" is a part of "sketch"
    others = [
        [j for j, owner in enumerate(owners) if owner and owner == owners[i] and j != i]
        for i in range(len(names))
    ]
    return torch.stack([own[js].mean(0) for js in others]) if all(others) else None


def scores(clients: Clients, adapters: Tensor, t: int) -> tuple[float, float]:
    replies = clients.call("evaluate", t, {i: {"adapter": own} for i, own in enumerate(adapters)})
    found = [reply.metrics for reply in replies.values()]
    return tuple(fmean(m[f"validation_{what}"] for m in found) for what in ("accuracy", "loss"))


def look(preset: str, overrides: Sequence[str], ablation: str) -> None:
    options = ["run.methods=['pfedseq']", f"methods.pfedseq.ablation={ablation}"]
    world = World.build(load_config(preset, [*options, *overrides]))
    server, clients = world.start("pfedseq")
    assert isinstance(server, PFedSeqServer)
    rounds = world.config.run.rounds

    def after_round(outcome: RoundOutcome) -> None:
        if outcome.t % 10 == 0:
            print(f"  round {outcome.t} of {rounds}", flush=True)

    run_rounds(server, clients, range(1, rounds + 1), after_round, evaluate_every=rounds)
    if ablation == "frozen":
        drift = server.history.window().sum(2).permute(2, 0, 1)  # (N, K, D)
        own = less_the_mean(drift, server)
        directions = {"its drift in the last L rounds": own}
        others = of_the_same_owner(own, [site.data.name for site in world.sites])
        if others is not None:
            directions["the drift of its owner's other clients"] = others
    else:
        own = less_the_mean(server.adapters - server.shared, server)
        directions = {"the personal part of ξ": own}
    update = server.history.newest().square().mean().sqrt()
    for name, own in directions.items():
        size = own.square().mean().sqrt() / update
        print(f"mean adapter + s times {name}, {size:.1f} times as long as an update:")
        for times in TIMES:
            accuracy, loss = scores(clients, server.shared + times * own, rounds)
            print(f"  s = {times:<5g} {100 * accuracy:5.1f} ({loss:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("preset")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    overrides = [f"run.seed={arguments.seed}", *arguments.set]
    for ablation in ("frozen", "none"):
        look(arguments.preset, overrides, ablation)


if __name__ == "__main__":
    main()
