"""A family of encoders in one file: ELECTRA's discriminators, for texts.

Its blocks are BERT's; only the layers before them differ.
"""

from pfedseq.model.encoders.bert import PLACES
from pfedseq.model.encoders.family import Family

FAMILY = Family(
    title="ELECTRA",
    model_types=("electra",),
    unit="text",
    places=PLACES,  # where transformers keeps the blocks and their projections
    below=("embeddings", "embeddings_project"),  # before the first block
)
