"""Images."""

from pfedseq.workloads.images.reader import asked_backbone

__all__ = ["asked_backbone"]
