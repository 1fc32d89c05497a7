"""What every table of a config has in common."""

from pydantic import BaseModel, ConfigDict


class BaseConfig(BaseModel):
    """A table of the config: immutable, and without room for unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
