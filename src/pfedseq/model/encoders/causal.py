"""Causal language models with Llama's architecture: Llama, Mistral, Qwen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from pfedseq.model.adapters import Places
from pfedseq.model.encoders.encoder import Towers
from pfedseq.model.encoders.family import Family
from pfedseq.model.encoders.parts import Part

PLACES = Places(
    {
        "query": "self_attn.q_proj",
        "key": "self_attn.k_proj",
        "value": "self_attn.v_proj",
        "output": "self_attn.o_proj",
        "mlp_gate": "mlp.gate_proj",
        "mlp_in": "mlp.up_proj",
        "mlp_out": "mlp.down_proj",
    },
    "layers",
)


class CausalFamily(Family):
    """Language models that read dialogues and predict each token from the previous ones."""

    def options(self, config: Any) -> tuple[object, ...]:
        """The common options, the rotary positions and the attention windows."""
        keys: tuple[str, ...]
        keys = ("model_type", "num_attention_heads", "num_key_value_heads", "head_dim")
        keys += ("hidden_act", "rms_norm_eps", "rope_parameters", "sliding_window", "layer_types")
        return tuple(repr(getattr(config, key, None)) for key in keys)

    def published_name(self, name: str) -> str:
        """`name` itself: transformers' causal models keep their blocks in `model` as well."""
        return name

    def towers(
        self,
        model: nn.Module,
        depth: int,
        first: int,
        inject: Callable[[nn.Module], None],
        part: Callable[[nn.Module, int, bool], Part],
    ) -> Towers:
        """Left whole if attention differs between blocks, since transformers counts the blocks."""
        kinds = set(getattr(model.config, "layer_types", None) or ())
        return super().towers(model, depth, first if len(kinds) < 2 else 0, inject, part)


def _family(title: str, model_types: tuple[str, ...], example: str) -> CausalFamily:
    return CausalFamily(
        title=title,
        model_types=model_types,
        example=example,
        unit="dialogue",
        places=PLACES,
        below=("embed_tokens",),
        above=("norm",),
        model_class="AutoModelForCausalLM",
    )


LLAMA = _family("Llama", ("llama",), "HuggingFaceTB/SmolLM2-135M-Instruct")
MISTRAL = _family("Mistral", ("mistral",), "mistralai/Mistral-7B-Instruct-v0.3")
QWEN2 = _family("Qwen2", ("qwen2",), "Qwen/Qwen2.5-0.5B-Instruct")
QWEN3 = _family("Qwen3", ("qwen3",), "Qwen/Qwen3-0.6B")
