"""The config of a run: read from TOML, validated, and saved with every option resolved."""

from pfedseq.config.config import Config
from pfedseq.config.reading import dump_config, load_config, load_plugin, make_config, read_config
from pfedseq.config.sections import (
    EngineConfig,
    FlowerConfig,
    ModelConfig,
    PluginConfig,
    RunConfig,
    TrainingConfig,
)

__all__ = [
    "Config",
    "EngineConfig",
    "FlowerConfig",
    "ModelConfig",
    "PluginConfig",
    "RunConfig",
    "TrainingConfig",
    "dump_config",
    "load_config",
    "load_plugin",
    "make_config",
    "read_config",
]
