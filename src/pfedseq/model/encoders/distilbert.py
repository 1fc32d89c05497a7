"""DistilBERT: BERT's blocks under other names, and half as many."""

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.family import Family

FAMILY = Family(
    title="DistilBERT",
    model_types=("distilbert",),
    example="distilbert/distilbert-base-uncased",
    unit="text",
    places=Places(
        {
            "query": "attention.q_lin",
            "key": "attention.k_lin",
            "value": "attention.v_lin",
            "output": "attention.out_lin",
            "mlp_in": "ffn.lin1",
            "mlp_out": "ffn.lin2",
        },
        "transformer.layer",
    ),
)
