"""RoBERTa and the models that share its code: BERT's blocks, positions counted from the padding."""

from typing import Any

from pfedseq.model.encoders.bert import PLACES
from pfedseq.model.encoders.family import Family


class RobertaFamily(Family):
    """The first positions of the table stand for padding."""

    def positions(self, config: Any) -> int:
        """Without those that no token has."""
        return int(config.max_position_embeddings) - int(config.pad_token_id) - 1


FAMILY = RobertaFamily(
    title="RoBERTa",
    model_types=("roberta", "xlm-roberta", "camembert"),
    example="FacebookAI/roberta-base",
    unit="text",
    places=PLACES,
    load_options={"add_pooling_layer": False},
)
