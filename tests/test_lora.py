"""A and B inside θ: masks, views, rank blocks whose product is the sum of the blocks' products."""

import pytest
import torch

from pfedseq.errors import InputError
from pfedseq.lora import Factors, Projection, factors_needed

# Two projections of rank 2: A (2, 3), B (4, 2), then B (2, 2) before A (2, 5), and 3 other numbers.
SIZES = [2 * 3, 4 * 2, 2 * 2, 2 * 5]
PLAIN = Factors(28, 2, (Projection(0, 6, 3, 4), Projection(18, 14, 5, 2)))
DORA = Factors(31, 2, PLAIN.projections)
K = 3


def theta(factors, seed=0, *more):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*more, K, factors.adapter_dim, generator=rng)


def test_masks_name_every_entry_once():
    a, b = PLAIN.mask("A", torch.zeros(1)), PLAIN.mask("B", torch.zeros(1))
    assert [int(m) for m in a] == [1] * 6 + [0] * 8 + [0] * 4 + [1] * 10
    assert torch.equal(b, ~a)
    assert PLAIN.only_factors
    assert not DORA.only_factors
    assert int((DORA.mask("A", a) | DORA.mask("B", a)).sum()) == 28


def test_matrices_are_views_in_pytorchs_order_and_adapter_is_their_inverse():
    adapter = theta(PLAIN, 0, 2)
    first, second = PLAIN.matrices(adapter)
    assert torch.equal(first.down[1, 2], adapter[1, 2, :6].view(2, 3))
    assert torch.equal(first.up[1, 2], adapter[1, 2, 6:14].view(4, 2))
    assert torch.equal(second.up[0, 1], adapter[0, 1, 14:18].view(2, 2))
    assert torch.equal(second.down[0, 1], adapter[0, 1, 18:].view(2, 5))
    assert torch.equal(PLAIN.adapter(PLAIN.matrices(adapter)), adapter)
    first.down.zero_()
    assert adapter[..., :6].abs().sum() == 0


def test_another_rank_keeps_the_order_of_the_parts():
    narrow = PLAIN.of_rank(1)
    assert narrow == Factors(14, 1, (Projection(0, 3, 3, 4), Projection(9, 7, 5, 2)))
    assert narrow.of_rank(2) == PLAIN


@pytest.mark.parametrize("blocks", [2, 3])
def test_joined_adapters_multiply_to_the_sum_of_their_products(blocks):
    narrow, wide = PLAIN, PLAIN.of_rank(2 * blocks)
    parts = [theta(narrow, seed) for seed in range(blocks)]
    joined = wide.join(parts)
    for back, part in zip(wide.split(joined, blocks), parts, strict=True):
        assert torch.equal(back, part)
    for number, whole in enumerate(wide.matrices(joined)):
        products = [narrow.matrices(part)[number] for part in parts]
        summed = sum(m.up.double() @ m.down.double() for m in products)
        torch.testing.assert_close(whole.up.double() @ whole.down.double(), summed)


def test_weights_multiply_the_blocks_products_and_leave_a():
    adapter = theta(DORA)
    weighted = adapter * DORA.weights(torch.tensor([0.25, 3.0]))  # two blocks of rank 1
    for before, after in zip(DORA.matrices(adapter), DORA.matrices(weighted), strict=True):
        assert torch.equal(after.down, before.down)
        assert torch.equal(after.up[..., 0], before.up[..., 0] * 0.25)
        assert torch.equal(after.up[..., 1], before.up[..., 1] * 3)
    assert torch.equal(weighted[:, 28:], adapter[:, 28:])


def test_an_adapter_without_factors_is_refused_in_a_sentence():
    assert factors_needed(PLAIN, "FedSA-LoRA", alone=True) is PLAIN
    assert factors_needed(DORA, "FedSA-LoRA") is DORA
    with pytest.raises(InputError, match=r"FedSA-LoRA works on LoRA's two factors.*'lora'"):
        factors_needed(None, "FedSA-LoRA")
    with pytest.raises(InputError, match=r"FlexLoRA works on products.*DoRA"):
        factors_needed(DORA, "FlexLoRA", alone=True)
