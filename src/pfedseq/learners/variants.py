"""The variants of the paper's Tables 2 and 3, each one config value of [methods.pfedseq]."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """A row of Table 2 or 3: what to set, and what the paper measured with it."""

    letter: str
    option: str
    """`key = value` under [methods.pfedseq]; nothing for the full method."""
    meaning: str
    table: int
    cifar100: float
    domainnet: float


VARIANTS = (
    Variant("A", 'ablation = "no_aggregation"', "the learner emits the adapter", 2, 94.41, 82.67),
    Variant("B", 'ablation = "no_cross_step"', "the last round alone, L = 1", 2, 94.66, 83.10),
    Variant(
        "C", 'ablation = "no_cross_client"', "each client's own sequence alone", 2, 94.40, 83.85
    ),
    Variant("D", 'architecture = "mlp"', "MLP over the concatenated window", 3, 94.32, 81.25),
    Variant("E", 'architecture = "lstm"', "LSTM", 3, 94.69, 82.77),
    Variant("pFedSeq", "", "selective SSM (Mamba)", 2, 95.30, 84.63),
)
