"""The hypernetworks by themselves: where they start, what they output, how they step."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from pfedseq.methods.parts.hypernets import (
    AdapterGenerator,
    EmbeddingNetwork,
    LayerWeights,
    Standardise,
    VectorEmbedding,
    build,
    build_generator,
    descriptor_dim,
    embed,
    embedding_network,
)
from pfedseq.methods.parts.step_along import step_along
from tests.toys import make_setup, random_centers

INITIAL = torch.arange(12.0).view(3, 4)


def setup_of(num_clients):
    return make_setup(random_centers(num_clients), [1] * num_clients)


def test_a_generator_starts_at_the_initial_adapter_whatever_the_descriptor():
    generator = AdapterGenerator(2, 100, INITIAL)
    assert torch.equal(generator(torch.randn(5, 2)), INITIAL.expand(5, 3, 4))


def test_a_generator_is_four_layers_wide_100_and_a_head():
    """(d + 1)·100 + 3·(100 + 1)·100 + (100 + 1)·K·D parameters."""
    generator = AdapterGenerator(2, 100, INITIAL)
    assert sum(p.numel() for p in generator.parameters()) == 3 * 100 + 3 * 101 * 100 + 101 * 12
    linear = [layer for layer in generator.body if isinstance(layer, nn.Linear)]
    assert len(linear) == 4
    assert isinstance(generator.body[-1], nn.Linear), "the heads read the last layer as it is"


@pytest.mark.parametrize(("num_clients", "dim"), [(3, 1), (6, 2), (10, 3), (20, 6), (100, 26)])
def test_descriptor_length(num_clients, dim):
    assert descriptor_dim(setup_of(num_clients)) == dim


def test_initial_weights_depend_on_seed_and_purpose_alone():
    setup = setup_of(4)
    torch.manual_seed(1)
    first, untouched = build_generator(setup, 10), torch.rand(1)
    torch.manual_seed(2)
    second = build_generator(setup, 10)
    other = build(lambda: AdapterGenerator(2, 10, setup.initial.adapter), setup, "other")
    assert torch.equal(first.body[0].weight, second.body[0].weight)
    assert not torch.equal(first.body[0].weight, other.body[0].weight)
    torch.manual_seed(1)
    assert torch.equal(untouched, torch.rand(1)), "the global stream must not be used"


def test_layer_weights_are_a_mean_that_starts_near_uniform():
    setup = setup_of(5)
    weights = build(lambda: LayerWeights(0, 12, 5, 100), setup, "w")().detach()
    assert weights.shape == (12, 5)
    torch.testing.assert_close(weights.sum(1), torch.ones(12))
    assert weights.min() > 0.5 / 5
    assert weights.max() < 2.0 / 5


def test_a_layer_without_weights_falls_back_to_the_client_itself():
    """Biases −1e3 in layer 1 kill its row; α^1 becomes one-hot, α^0 is what it was."""
    network = LayerWeights(2, 2, 4, 8)
    alive = network().detach()[0]
    with torch.no_grad():
        network.heads.bias.view(2, 4)[1] = -1e3
    weights = network()
    assert torch.equal(weights[1], torch.tensor([0.0, 0.0, 1.0, 0.0]))
    torch.testing.assert_close(weights[0], alive)
    weights.backward(torch.randn(2, 4))
    assert all(p.grad.isfinite().all() for p in network.parameters())
    assert torch.equal(network.heads.weight.grad.view(2, 4, 8)[1], torch.zeros(4, 8))


def test_layer_weights_normalise_by_the_sum_and_not_by_a_softmax():
    """With zero head weights the biases are the raw outputs: (1, 3, 0, −5) ↦ (¼, ¾, 0, 0)."""
    network = LayerWeights(0, 1, 4, 8)
    with torch.no_grad():
        network.heads.weight.zero_()
        network.heads.bias.copy_(torch.tensor([1.0, 3.0, 0.0, -5.0]))
    torch.testing.assert_close(network(), torch.tensor([[0.25, 0.75, 0.0, 0.0]]))


def concatenated(network, images, labels):
    """f as the original writes it: the one-hot label as constant channels beside the colours."""
    one_hot = functional.one_hot(labels, network.first.in_channels - 3).to(images)
    channels = one_hot[:, :, None, None].expand(-1, -1, *images.shape[2:])
    x = network.first(torch.cat([images, channels], 1))
    x = functional.max_pool2d(functional.relu(x), 2)
    x = functional.max_pool2d(functional.relu(network.second(x)), 2).flatten(1)
    return network.last(functional.relu(network.fourth(functional.relu(network.third(x)))))


def test_labels_as_a_shift_equal_labels_as_channels_in_value_and_gradient():
    torch.manual_seed(0)
    network = EmbeddingNetwork(num_classes=7, output_dim=3).double()
    images = torch.randn(5, 3, 32, 32, dtype=torch.float64)
    labels = torch.tensor([0, 6, 3, 3, 1])
    ours, theirs = network(images, labels), concatenated(network, images, labels)
    torch.testing.assert_close(ours, theirs)
    up = torch.randn_like(ours)
    mine = torch.autograd.grad(ours, tuple(network.parameters()), up)
    expected = torch.autograd.grad(theirs, tuple(network.parameters()), up)
    for a, b in zip(mine, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_the_label_matters_to_the_embedding():
    torch.manual_seed(0)
    network, images = EmbeddingNetwork(4, 2), torch.randn(1, 3, 32, 32).expand(2, -1, -1, -1)
    one, other = network(images, torch.tensor([0, 3]))
    assert not torch.allclose(one, other)


def test_embedding_with_given_weights_equals_the_network_and_draws_nothing():
    torch.manual_seed(0)
    network = EmbeddingNetwork(4, 2)
    images, labels = torch.randn(3, 3, 32, 32), torch.tensor([0, 1, 3])
    weights = {name: p.detach() for name, p in network.named_parameters()}
    before = torch.get_rng_state()
    embeddings = embed(weights, images, labels)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(embeddings, network(images, labels))


def test_standardising_is_one_mean_and_one_deviation_over_all_entries():
    """(1, 3, 5, 7): mean 4, variance (9 + 1 + 1 + 9) / 4 = 5."""
    standardise = Standardise()
    v = torch.tensor([[1.0, 3.0], [5.0, 7.0]])
    assert torch.equal(standardise(v), v), "nothing happens before the fit"
    standardise.fit(v)
    torch.testing.assert_close(standardise(v), (v - 4) / 5**0.5)
    standardise.fit(torch.tensor([[2.0]]))
    assert torch.equal(standardise(torch.tensor([[5.0]])), torch.tensor([[3.0]]))


@pytest.mark.parametrize(("max_norm", "length"), [(None, 10.0), (50.0, 10.0), (2.5, 2.5)])
def test_a_clipped_step_keeps_its_direction(max_norm, length):
    """outputs = w, direction (6, 8) of norm 10: SGD of rate 1 moves w by it, cut to max_norm."""
    weight = torch.zeros(2, requires_grad=True)
    step_along(torch.optim.SGD([weight], lr=1.0), weight * 1, torch.tensor([6.0, 8.0]), max_norm)
    torch.testing.assert_close(weight.detach(), length * torch.tensor([0.6, 0.8]))


def test_vectors_are_embedded_with_their_one_hot_labels():
    """The column of a label is what its one-hot vector picks: an MLP over (x, e_y)."""
    network = embedding_network((6,), 4, 3).double()
    assert isinstance(network, VectorEmbedding)
    rng = torch.Generator().manual_seed(0)
    vectors = torch.randn(5, 6, generator=rng, dtype=torch.float64)
    labels = torch.tensor([3, 0, 2, 2, 1])
    whole = torch.cat([vectors, nn.functional.one_hot(labels, 4)], dim=1)
    plain = nn.Sequential(network.first, nn.ReLU(), network.second, nn.ReLU(), network.last)
    weights = {name: weight.detach() for name, weight in network.named_parameters()}
    torch.testing.assert_close(embed(weights, vectors, labels), plain(whole))
    assert isinstance(embedding_network((3, 32, 32), 4, 3), EmbeddingNetwork)
