"""examples/plugin/pfedseq_example/electra.py: a family of encoders that is not in the package."""

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModel, AutoTokenizer, ElectraConfig, ElectraModel

from pfedseq.errors import InputError
from pfedseq.model.adapted import AdaptedModel
from pfedseq.model.adapter_config import AdapterConfig
from pfedseq.model.encoders import FAMILIES
from pfedseq.model.text_encoder import load_text_encoder
from pfedseq.plugins import load_file
from tests.model.some_models import some_phi
from tests.model.tiny_text_models import COMMON, SIZES, tokenizer

FILE = Path(__file__).parents[2] / "examples/plugin/pfedseq_example/electra.py"


@pytest.fixture
def electra(tmp_path):
    """Its word embeddings are narrower than its blocks, so that all it has stands before them."""
    torch.manual_seed(0)
    ElectraModel(ElectraConfig(**COMMON, **SIZES, embedding_size=16)).save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_family_from_one_file_is_cut_and_adapted_like_any_other(electra, monkeypatch):
    with pytest.raises(InputError, match="model_type 'electra'"):
        load_text_encoder(electra)
    load_file(FILE)
    try:
        encoder = load_text_encoder(electra)
    finally:
        del FAMILIES["electra"]
    model = AdaptedModel(encoder, AdapterConfig(layers="last 2"), 3, seed=0)
    assert model.prefix.num_layers == 1
    phi, text = some_phi(model), "so bread moon"
    tokens = AutoTokenizer.from_pretrained(electra)(text, return_tensors="pt")
    targets = [f"layer.{k}.attention.self.{name}" for k in (1, 2) for name in ("query", "value")]
    settings = LoraConfig(r=model.adapter_config.rank, target_modules=targets)
    settings.lora_alpha = model.adapter_config.alpha
    theirs = get_peft_model(AutoModel.from_pretrained(electra), settings).eval()
    weights = dict(theirs.base_model.model.named_parameters())
    with torch.no_grad():
        for name, value in model.layout.unflatten(phi.adapter).items():
            weights[encoder.published_name(name)].copy_(value)
        expected = theirs(**tokens).last_hidden_state.mean(1)
        found = model.features(phi.adapter, model.inputs(tokens["input_ids"]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
