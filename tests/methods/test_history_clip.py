"""An update that is suddenly long: scaled down for the learner, whole for the mean adapter."""

import pytest
import torch

from pfedseq.federation import Reply, Setup
from pfedseq.methods import pfedseq
from pfedseq.methods.pfedseq import PFedSeqConfig, PFedSeqServer
from pfedseq.params import Params

USUAL = torch.tensor([[3.0, 4.0]])  # 5 long


def played(clip: float, monkeypatch: pytest.MonkeyPatch) -> tuple[PFedSeqServer, list]:
    """Two clients send USUAL; in round 2 the first sends ten times as much."""
    directions: list[torch.Tensor] = []
    monkeypatch.setattr(pfedseq, "step_along", lambda _, outputs, along: directions.append(along))
    setup = Setup(Params(torch.zeros(1, 2), torch.zeros(3)), (1, 1), 9, 0)
    server = PFedSeqServer(PFedSeqConfig(history_clip=clip, warmup_rounds=9), setup)
    for t, factor in ((1, 1.0), (2, 10.0)):
        server.update(t, {0: Reply({"delta": factor * USUAL}), 1: Reply({"delta": USUAL})})
    return server, directions


def test_history_and_direction_are_bounded_and_the_mean_is_not(monkeypatch):
    """1.5 times the usual length for client 0; the mean moves by 1, then by 5.5 times USUAL."""
    server, (direction,) = played(1.5, monkeypatch)
    for seen in (server.history.newest(), direction):
        torch.testing.assert_close(seen[0], 1.5 * USUAL)
        torch.testing.assert_close(seen[1], USUAL)
    torch.testing.assert_close(server.shared, 6.5 * USUAL)


def test_without_a_bound_the_learner_sees_updates_as_they_are(monkeypatch):
    server, (direction,) = played(0.0, monkeypatch)
    torch.testing.assert_close(server.history.newest()[0], 10 * USUAL)
    torch.testing.assert_close(direction[0], 10 * USUAL)
