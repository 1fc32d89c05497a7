"""The variants of the paper's Tables 2 and 3 and ours; each sets one option of pFedSeq."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    """A row of Table 2 or 3 and the option that it sets."""

    letter: str
    option: str
    """`key = value` under [methods.pfedseq]; nothing for the full method."""
    meaning: str
    table: int

    @property
    def key(self) -> str:
        """The name of its runs."""
        option, _, value = self.option.partition(" = ")
        return "no-groups" if option == "group_cosine" else value.strip('"')


VARIANTS = (
    Variant("A", 'ablation = "no_aggregation"', "the learner emits the adapter", 2),
    Variant("B", 'ablation = "no_cross_step"', "only the last round, L = 1", 2),
    Variant("C", 'ablation = "no_cross_client"', "only each client's own sequence", 2),
    Variant("frozen", 'ablation = "frozen"', "the learner is never trained; not in the paper", 2),
    Variant(
        "common", 'ablation = "common"', "only the mean of ξ over clients; not in the paper", 2
    ),
    Variant("personal", 'ablation = "personal"', "ξ without that mean; not in the paper", 2),
    Variant(
        "no groups", "group_cosine = 0", "one mean adapter for all clients; not in the paper", 2
    ),
    Variant("D", 'architecture = "mlp"', "MLP over the concatenated window", 3),
    Variant("E", 'architecture = "lstm"', "LSTM", 3),
    Variant("linear", 'architecture = "linear"', "a matrix over the sum; not in the paper", 3),
    Variant("pFedSeq", "", "selective SSM (Mamba)", 2),
)
