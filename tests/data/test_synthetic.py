"""The generated images: a function of the seed, varied within a class, distinct between classes."""

import math

import pytest
import torch

from pfedseq.data.synthetic import MAX_TURN, SyntheticClasses


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_images_are_a_function_of_the_seeds() -> None:
    images, labels = SyntheticClasses(3).draw(40, rng(1))
    again, same_labels = SyntheticClasses(3).draw(40, rng(1))
    assert torch.equal(images, again)
    assert torch.equal(labels, same_labels)
    other_classes, _ = SyntheticClasses(4).draw(40, rng(1))
    other_instances, _ = SyntheticClasses(3).draw(40, rng(2))
    assert not torch.equal(images, other_classes)
    assert not torch.equal(images, other_instances)


def test_shapes_range_and_every_family_in_a_batch() -> None:
    classes = SyntheticClasses(0, glyphs=20, shapes=6, textures=5)
    images, labels = classes.draw(100, rng(0))
    assert images.shape == (100, 3, 32, 32)
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.isfinite().all()
    families = torch.bucketize(labels, torch.tensor([20, 26]), right=True).bincount()
    assert families.tolist() == [70, 15, 15]
    assert labels.max() < classes.num_classes == 31


def test_ink_is_brighter_than_the_ground() -> None:
    """Polarity is left to the adapters: in glyphs, the border is darker than the brightest part."""
    images, labels = SyntheticClasses(0).draw(100, rng(0))
    glyphs = images[labels < 256].mean(1)
    border = torch.cat([glyphs[:, 0], glyphs[:, -1]], dim=1).median(1).values
    assert (glyphs.flatten(1).quantile(0.98, dim=1) > border + 0.1).float().mean() > 0.95
    assert math.degrees(MAX_TURN) < 15


@pytest.mark.parametrize("family", ["glyphs", "shapes", "textures"])
def test_classes_differ_more_than_instances_when_variation_is_low(family: str) -> None:
    """At `variation` 0 only pen width, resolution and phases differ within a class."""
    classes = SyntheticClasses(0)
    render = getattr(classes, f"_render_{family}")
    ids = torch.arange(8).repeat_interleave(8)
    rigid = render(ids, 0.0, rng(0))
    varied = render(ids, 1.0, rng(0))
    # Magnitudes of the Fourier transform do not see a texture's phases.
    spectra = [torch.fft.rfft2(ink).abs().view(8, 8, -1) for ink in (rigid, varied)]
    within = [float(s.var(dim=1).mean()) for s in spectra]
    between = float(spectra[0].mean(dim=1).var(dim=0).mean())
    assert within[0] < between
    assert within[0] < 0.8 * within[1]


def test_middle_of_a_straight_stroke_has_the_same_ink_at_any_width() -> None:
    """Unit weight per length gives density 1, over 0.95 for the mean scale: 1 − exp(−2.5/0.95)."""
    classes = SyntheticClasses(0, glyphs=1)
    q = classes._glyph_points.shape[1]
    y = torch.linspace(-1.5, 1.5, q)
    classes._glyph_points = torch.stack([torch.full((q,), 1 / 32), y], dim=-1).unsqueeze(0)
    classes._glyph_weights = torch.full((1, q), 3.0 / (q - 1))
    ink = classes._render_glyphs(torch.zeros(16, dtype=torch.long), 0.0, rng(0))
    middle = ink[:, 16, :].amax(-1)
    expected = torch.full((16,), 1 - math.exp(-2.5 / 0.95))
    torch.testing.assert_close(middle, expected, atol=1e-3, rtol=0)
    assert (ink[:, 16, :] > 0.5).sum(-1).unique().numel() > 1  # the widths do differ
