"""MPNet, used by many sentence encoders: RoBERTa's positions, plus relative ones in attention."""

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.roberta import RobertaFamily

FAMILY = RobertaFamily(
    title="MPNet",
    model_types=("mpnet",),
    example="sentence-transformers/all-mpnet-base-v2",
    unit="text",
    places=Places(
        {
            "query": "attention.attn.q",
            "key": "attention.attn.k",
            "value": "attention.attn.v",
            "output": "attention.attn.o",
            "mlp_in": "intermediate.dense",
            "mlp_out": "output.dense",
        },
        "encoder.layer",
    ),
    load_options={"add_pooling_layer": False},
)
