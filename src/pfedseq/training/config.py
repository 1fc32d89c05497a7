"""The options of local training."""

from pydantic import Field

from pfedseq.base_config import BaseConfig


class LocalTraining(BaseConfig):
    """How a client trains: [training] says it for all methods, [methods.NAME] for one."""

    lr: float = Field(0.005, gt=0, description="η, rate of local SGD; paper: 0.005, Omniglot 0.05")
    head_lr: float | None = Field(
        None,
        gt=0,
        description="rate of the heads where `lr` is that of the adapters; a method with an `lr` "
        "of its own keeps their ratio; default and paper: as `lr`",
    )
    local_epochs: int = Field(1, ge=1, description="passes over the local data a round; paper: 1")

    @property
    def head_ratio(self) -> float:
        """The heads' rate as a multiple of the adapters'."""
        return 1.0 if self.head_lr is None else self.head_lr / self.lr

    def rates(self, lr: float) -> tuple[float, float]:
        """Of adapters and heads, for a step of the method's own whose rate is `lr`."""
        return lr, lr * self.head_ratio
