"""ModernBERT: rotary positions, local and global attention, one projection for q, k and v."""

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.family import Family

FAMILY = Family(
    title="ModernBERT",
    model_types=("modernbert",),
    example="answerdotai/ModernBERT-base",
    unit="text",
    places=Places(
        {"qkv": "attn.Wqkv", "output": "attn.Wo", "mlp_in": "mlp.Wi", "mlp_out": "mlp.Wo"},
        "layers",
    ),
    above=("final_norm",),
)
