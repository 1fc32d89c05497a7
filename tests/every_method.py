"""All registered methods as cases of a test, with options that fit a run of a few rounds."""

import pytest

from pfedseq.methods import METHODS

OPTIONS = {
    "pfedseq": {"warmup_rounds": 2, "max_sequence_length": 2, "learner_lr": 0.001},
    "pfedme": {"proximal_weight": 5.0},
    "fedavgm": {"server_momentum": 0.3},
    "ghbm": {"server_momentum": 0.3, "server_window": 2},
}

every_method = pytest.mark.parametrize("name", METHODS)
