"""Random streams depend on the seed and the purpose, and leave no trace."""

import pytest
import torch

from pfedseq.seeding import derive_seed, seeded, torch_generator


def drawn(*key):
    with seeded(*key):
        return torch.rand(3)


def test_seed_and_every_name_count():
    keys = [(0, "a"), (1, "a"), (0, "b"), (0, "a", 1), (0, "a", 2)]
    assert len({derive_seed(*key) for key in keys}) == len(keys)
    draws = {tuple(drawn(*key).tolist()) for key in keys}
    assert len(draws) == len(keys)
    assert torch.equal(drawn(0, "a"), drawn(0, "a"))
    assert torch.equal(drawn(0, "a"), torch.rand(3, generator=torch_generator(0, "a")))


def test_without_names_the_seed_is_taken_as_it_is():
    torch.manual_seed(5)
    plain = torch.rand(3)
    assert torch.equal(drawn(5), plain)


def test_the_global_generator_goes_on_as_if_nothing_had_been_drawn():
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    drawn(7, "x")
    with pytest.raises(RuntimeError), seeded(8, "y"):
        raise RuntimeError
    assert torch.equal(torch.rand(2), expected)
