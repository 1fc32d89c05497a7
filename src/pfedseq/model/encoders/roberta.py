"""RoBERTa and the models that share its code: BERT's blocks, positions counted from the padding."""

from typing import Any

from pfedseq.model.encoders.bert import PLACES
from pfedseq.model.encoders.family import Family


class RobertaFamily(Family):
    """RoBERTa, whose first positions are reserved for padding."""

    def positions(self, config: Any) -> int:
        """The number of positions without those reserved for padding."""
        return int(config.max_position_embeddings) - int(config.pad_token_id) - 1


FAMILY = RobertaFamily(
    title="RoBERTa",
    model_types=("roberta", "xlm-roberta", "camembert"),
    example="FacebookAI/roberta-base",
    unit="text",
    places=PLACES,
    load_options={"add_pooling_layer": False},
)
