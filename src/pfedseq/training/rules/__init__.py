"""The optimisers by name, each a rule that turns one gradient into one step.

To add one: write its rule in a file here and name it in `RULES`.
"""

from pfedseq.training.rules.adamw import adamw
from pfedseq.training.rules.rule import Rule
from pfedseq.training.rules.sgd import sgd

RULES: dict[str, Rule] = {"sgd": sgd, "adamw": adamw}
