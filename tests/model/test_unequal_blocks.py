"""Encoders whose blocks differ are refused in a sentence that says why."""

import json

import pytest

from pfedseq.errors import InputError
from pfedseq.model.backbone import load_backbone


@pytest.mark.parametrize("model_type", ["swin", "convnext", "resnet"])
def test_blocks_of_several_sizes_are_refused(model_type, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(InputError, match=f"'{model_type}', whose blocks have several sizes"):
        load_backbone(str(tmp_path))
