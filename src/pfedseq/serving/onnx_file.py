"""A personal model as an ONNX file; needs the extra `onnx`."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from pfedseq.errors import InputError
from pfedseq.files import write_atomically
from pfedseq.workloads.images.published import backbone_of, merged_classifier
from pfedseq.workloads.personal import PersonalModel

OPSET = 18


def check_onnx() -> None:
    """Refuse early if packages that PyTorch's exporter needs are missing."""
    if importlib.util.find_spec("onnx") is None or importlib.util.find_spec("onnxscript") is None:
        raise InputError("--onnx needs more packages: pip install 'pfedseq[onnx]'")


class _Logits(nn.Module):
    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        self.classifier = classifier

    def forward(self, pixel_values: Tensor) -> Tensor:
        logits: Tensor = self.classifier(pixel_values=pixel_values).logits
        return logits


def write_onnx(personal: PersonalModel, path: Path) -> None:
    """Write a file that maps normalised `pixel_values` (batch, 3, S, S) to `logits` (batch, C)."""
    check_onnx()
    side = backbone_of(personal).image_size
    example = torch.zeros(2, 3, side, side)
    with _quiet():
        program = torch.onnx.export(
            _Logits(merged_classifier(personal)),
            (example,),
            input_names=["pixel_values"],
            output_names=["logits"],
            dynamic_shapes={"pixel_values": {0: torch.export.Dim("batch")}},
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    write_atomically(path, program.model_proto.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's messages about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
