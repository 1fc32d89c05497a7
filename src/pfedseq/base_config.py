"""The base class of all config sections."""

from pydantic import BaseModel, ConfigDict


class BaseConfig(BaseModel):
    """A config section: immutable, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
