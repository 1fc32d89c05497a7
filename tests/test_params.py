import torch

from pfedseq.params import Params


def test_flat_is_the_adapter_row_by_row_and_then_the_head():
    phi = Params(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0, 6.0, 7.0]))
    assert phi.flat().tolist() == [1, 2, 3, 4, 5, 6, 7]
    again = phi.unflat(phi.flat() + 1)
    assert again.adapter.tolist() == [[2, 3], [4, 5]]
    assert again.head.tolist() == [6, 7, 8]


def test_a_message_carries_adapter_and_head_by_name():
    phi = Params(torch.tensor([[1.0, 2.0]]), torch.tensor([3.0]))
    assert phi.tensors()["adapter"] is phi.adapter
    assert phi.tensors()["head"] is phi.head
    again = Params.of({"head": phi.head, "adapter": phi.adapter, "other": torch.tensor(0)})
    assert again.adapter is phi.adapter
    assert again.head is phi.head
