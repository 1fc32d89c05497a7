"""θ ↔ named weights: nothing is lost, views carry gradients, unequal blocks are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pfedseq.errors import InputError
from pfedseq.model.layout import AdapterLayout

shapes = st.lists(
    st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=4
)


@given(layers=st.sets(st.integers(0, 12), min_size=1, max_size=4), block=shapes)
def test_round_trip(layers, block):
    named_shapes = {
        f"vit.layers.{k}.w{j}.weight": shape
        for k in sorted(layers)
        for j, shape in enumerate(block)
    }
    layout = AdapterLayout.from_shapes(named_shapes)
    theta = torch.randn(len(layers), layout.adapter_dim)
    named = layout.unflatten(theta)
    assert {name: tuple(t.shape) for name, t in named.items()} == named_shapes
    assert torch.equal(layout.flatten(named), theta)
    assert torch.equal(torch.cat([t.reshape(-1) for t in named.values()]), theta.reshape(-1)), (
        "row k must hold the k-th layer's weights in order"
    )


def test_unflatten_gives_views_and_gradients_come_back_in_place():
    layout = AdapterLayout.from_shapes({f"layers.{k}.a": (2, 3) for k in range(2)})
    theta = torch.zeros(2, 6, requires_grad=True)
    named = layout.unflatten(theta)
    assert named["layers.1.a"].data_ptr() == theta[1].data_ptr()
    (named["layers.1.a"] * torch.arange(6.0).view(2, 3)).sum().backward()
    assert torch.equal(theta.grad, torch.stack([torch.zeros(6), torch.arange(6.0)]))


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"layers.0.a": (2,), "layers.1.a": (3,)}, "layer 1.*differs"),
        ({"upper.layers.0.a": (2,), "lower.layers.1.a": (2,)}, "one stack"),
        ({"head.weight": (2,)}, "no numbered backbone layer"),
        ({}, "no adapter weights"),
    ],
)
def test_what_does_not_fit_is_refused(named, says):
    with pytest.raises(InputError, match=says):
        AdapterLayout.from_shapes(named)


def test_wrong_tensors_are_refused():
    layout = AdapterLayout.from_shapes({"layers.0.a": (2,)})
    with pytest.raises(InputError, match=r"\(1, 3\) where \(1, 2\)"):
        layout.unflatten(torch.zeros(1, 3))
    with pytest.raises(InputError, match="missing"):
        layout.flatten({})
    with pytest.raises(InputError, match="shape"):
        layout.flatten({"layers.0.a": torch.zeros(3)})
