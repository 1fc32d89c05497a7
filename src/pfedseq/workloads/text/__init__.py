"""Texts."""

from pfedseq.workloads.text.reader import asked_backbone

__all__ = ["asked_backbone"]
