"""The variants of the paper's Tables 2 and 3 and ours, each one value of [methods.pfedseq]."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """A row of Table 2 or 3: what to set."""

    letter: str
    option: str
    """`key = value` under [methods.pfedseq]; nothing for the full method."""
    meaning: str
    table: int


VARIANTS = (
    Variant("A", 'ablation = "no_aggregation"', "the learner emits the adapter", 2),
    Variant("B", 'ablation = "no_cross_step"', "the last round alone, L = 1", 2),
    Variant("C", 'ablation = "no_cross_client"', "each client's own sequence alone", 2),
    Variant("frozen", 'ablation = "frozen"', "the learner is never trained; not in the paper", 2),
    Variant("common", 'ablation = "common"', "ξ's mean over clients alone; not in the paper", 2),
    Variant("personal", 'ablation = "personal"', "ξ without that mean; not in the paper", 2),
    Variant("D", 'architecture = "mlp"', "MLP over the concatenated window", 3),
    Variant("E", 'architecture = "lstm"', "LSTM", 3),
    Variant("linear", 'architecture = "linear"', "a matrix over the sum; not in the paper", 3),
    Variant("pFedSeq", "", "selective SSM (Mamba)", 2),
)
