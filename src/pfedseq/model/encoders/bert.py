"""BERT: post-norm blocks and learnt positions."""

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.family import Family

PLACES = Places(
    {
        "query": "attention.self.query",
        "key": "attention.self.key",
        "value": "attention.self.value",
        "output": "attention.output.dense",
        "mlp_in": "intermediate.dense",
        "mlp_out": "output.dense",
    },
    "encoder.layer",
)

FAMILY = Family(
    title="BERT",
    model_types=("bert",),
    example="google-bert/bert-base-uncased",
    unit="text",
    places=PLACES,
    load_options={"add_pooling_layer": False},
)
