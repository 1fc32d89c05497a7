"""The last block on one token gives the whole block's first token, and its gradients."""

import copy

import pytest
import torch
from transformers import ViTConfig, ViTModel

from pfedseq.model.encoders.vit.class_token import ClassTokenBlock, keep_class_token_only


@pytest.fixture
def model() -> ViTModel:
    torch.manual_seed(5)
    config = ViTConfig(
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        image_size=8,
        patch_size=4,
    )
    model = ViTModel(config, add_pooling_layer=False).eval().double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model


def test_first_token_and_gradients_of_the_whole_block(model: ViTModel) -> None:
    block = model.layers[-1]
    tokens = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
    inputs = [tokens, *block.parameters()]
    direction = torch.randn(2, 12, dtype=torch.float64)
    whole, alone = block(tokens), ClassTokenBlock(block)(tokens)
    assert alone.shape == (2, 1, 12)
    torch.testing.assert_close(alone[:, 0], whole[:, 0])
    expected = torch.autograd.grad(whole[:, 0], inputs, direction)
    actual = torch.autograd.grad(alone[:, 0], inputs, direction)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_model_keeps_its_names_and_its_class_token(model: ViTModel) -> None:
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    short = copy.deepcopy(model)
    keep_class_token_only(short)
    assert set(short.state_dict()) == set(model.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(
            short(images).last_hidden_state, model(images).last_hidden_state[:, :1]
        )
