"""Properties that text encoders and language models share because they follow from the family."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel

from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.adapters import Places
from pfedseq.model.encoders.family import Family


class TokenModel:
    """A transformer that reads tokens; a subclass is a dataclass with these four fields."""

    model: PreTrainedModel
    family: Family
    name: str
    tokenizer: Any

    @property
    def config(self) -> Any:
        """transformers' config of the model."""
        return self.model.config

    @property
    def places(self) -> Places:
        """Names of the modules that can carry adapters."""
        return self.family.places

    @property
    def feature_dim(self) -> int:
        """F, the length of a feature."""
        return self.family.feature_dim(self.config)

    @property
    def num_layers(self) -> int:
        """K, the number of layers."""
        return self.family.depth(self.config)

    @property
    def most_tokens(self) -> int:
        """The maximum number of tokens in an input."""
        return self.family.positions(self.config)

    def published_name(self, name: str) -> str:
        """The name of a tower's parameter in transformers' own model."""
        return self.family.published_name(name)

    def check(self, adapter: AdapterConfig) -> None:
        """Refuse an adapter with targets that the blocks do not have."""
        self.family.check(adapter, self.name)
