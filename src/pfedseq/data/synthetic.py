"""Labelled images drawn from random programs: glyphs made of strokes, filled shapes, textures.

Nothing is read from disk: `SyntheticClasses` invents its classes from a seed and renders any
number of jittered instances of each. Coordinates run from −1 to 1, x to the right and y down.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional

IMAGE_SIZE = 32
POINTS_PER_STROKE = 40
MAX_STROKES = 3
MAX_TURN = math.radians(12)
SHAPE_HARMONICS = 6
GRATINGS_PER_TEXTURE = 3
GLYPH_SHARE, SHAPE_SHARE = 0.7, 0.15
"""Shares of a batch; textures have the rest."""


class SyntheticClasses:
    """A fixed set of image classes; `draw` renders random instances of random classes.

    Labels 0 … G−1 are glyphs, then S shapes, then T textures. Instances of a class differ as two
    people's handwriting does: in position, size, slant, a smooth deformation, stroke width,
    sharpness, contrast, tint and noise. Polarity does *not* vary (ink is brighter than the
    background) and rotations stay under MAX_TURN, so that an adapter has to learn a client's
    unusual scanner.
    """

    def __init__(self, seed: int, glyphs: int = 256, shapes: int = 64, textures: int = 64) -> None:
        programs = torch.Generator().manual_seed(seed)
        self.num_glyphs, self.num_shapes, self.num_textures = glyphs, shapes, textures
        points, weights = zip(*(_random_glyph(programs) for _ in range(glyphs)), strict=True)
        self._glyph_points = torch.stack(points)  # (G, Q, 2)
        self._glyph_weights = torch.stack(weights)  # (G, Q)
        self._shape_waves = _random_outlines(shapes, programs)  # (S, H, 2)
        self._texture_waves = _random_gratings(textures, programs)  # (T, W, 2)
        self._texture_sharpness = _uniform((textures, 1, 1), 1.0, 8.0, programs)

    @property
    def num_classes(self) -> int:
        """Glyphs, shapes and textures together."""
        return self.num_glyphs + self.num_shapes + self.num_textures

    def draw(
        self, count: int, rng: torch.Generator, variation: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Render `count` images: (count, 3, 32, 32) in [0, 1], and their (count,) labels.

        `variation` scales every geometric difference within a class; 0 makes all instances of a
        class congruent (a curriculum starts low).
        """
        glyphs = round(count * GLYPH_SHARE)
        shapes = round(count * SHAPE_SHARE)
        textures = count - glyphs - shapes
        glyph_ids = torch.randint(self.num_glyphs, (glyphs,), generator=rng)
        shape_ids = torch.randint(self.num_shapes, (shapes,), generator=rng)
        texture_ids = torch.randint(self.num_textures, (textures,), generator=rng)
        ink = torch.cat(
            [
                self._render_glyphs(glyph_ids, variation, rng),
                self._render_shapes(shape_ids, variation, rng),
                self._render_textures(texture_ids, variation, rng),
            ]
        )
        labels = torch.cat(
            [
                glyph_ids,
                shape_ids + self.num_glyphs,
                texture_ids + self.num_glyphs + self.num_shapes,
            ]
        )
        return _photograph(ink, rng), labels

    def _render_glyphs(self, ids: Tensor, variation: float, rng: torch.Generator) -> Tensor:
        """Ink (n, 32, 32): Gaussian pen marks along the deformed strokes.

        A mark factorises into a function of x and one of y, so the sum over the Q points of all
        strokes is one matrix product per image. With weights equal to arc length, dividing by
        σ√(2π) makes the middle of a lone straight stroke 1 whatever its width.
        """
        n = len(ids)
        points = self._glyph_points[ids]
        points = points + _smooth_displacement(points, 0.09 * variation, rng)
        points = points @ _random_affine(n, variation, rng).transpose(1, 2)
        points = points + variation * _uniform((n, 1, 2), -0.14, 0.14, rng)
        width = _uniform((n, 1, 1), 0.05, 0.13, rng)
        grid = _pixel_centres()
        along_x = torch.exp(-0.5 * ((grid - points[..., :1]) / width) ** 2)
        along_y = torch.exp(-0.5 * ((grid - points[..., 1:]) / width) ** 2)
        along_y = along_y * self._glyph_weights[ids].unsqueeze(-1)
        density = along_y.transpose(1, 2) @ along_x / (width * math.sqrt(2 * math.pi))
        return 1 - torch.exp(-2.5 * density)

    def _render_shapes(self, ids: Tensor, variation: float, rng: torch.Generator) -> Tensor:
        """Ink (n, 32, 32): 1 inside the outline r(angle), falling to 0 over about a pixel."""
        n = len(ids)
        position = _pixel_grid().expand(n, -1, -1) - variation * _uniform(
            (n, 1, 2), -0.14, 0.14, rng
        )
        position = position + _smooth_displacement(position, 0.05 * variation, rng)
        position = position @ _random_affine(n, variation, rng).transpose(1, 2)
        angle = torch.atan2(position[..., 1], position[..., 0]).unsqueeze(-1)
        order = torch.arange(1, SHAPE_HARMONICS + 1)
        waves = self._shape_waves[ids].unsqueeze(1)  # (n, 1, H, 2)
        wobble = waves[..., 0] * torch.cos(order * angle) + waves[..., 1] * torch.sin(order * angle)
        radius = 0.55 * torch.exp(wobble.sum(-1))
        softness = _uniform((n, 1), 0.02, 0.08, rng)
        ink = torch.sigmoid((radius - position.norm(dim=-1)) / softness)
        return ink.view(n, IMAGE_SIZE, IMAGE_SIZE)

    def _render_textures(self, ids: Tensor, variation: float, rng: torch.Generator) -> Tensor:
        """Ink (n, 32, 32): plane waves of the class at random phases, summed and squashed."""
        n = len(ids)
        position = _pixel_grid().expand(n, -1, -1) @ _random_affine(n, variation, rng)
        position = position + _smooth_displacement(position, 0.05 * variation, rng)
        phase = _uniform((n, 1, GRATINGS_PER_TEXTURE), 0, 2 * math.pi, rng)
        waves = torch.sin(position @ self._texture_waves[ids].transpose(1, 2) + phase).mean(-1)
        ink = torch.sigmoid(self._texture_sharpness[ids].squeeze(-1) * waves)
        return ink.view(n, IMAGE_SIZE, IMAGE_SIZE)


def _random_glyph(rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """One to three strokes, often joined: points (Q, 2) and arc-length weights (Q,)."""
    strokes = int(torch.randint(1, MAX_STROKES + 1, (), generator=rng))
    points = torch.zeros(MAX_STROKES, POINTS_PER_STROKE, 2)
    weights = torch.zeros(MAX_STROKES, POINTS_PER_STROKE)
    for s in range(strokes):
        stroke = _random_stroke(rng)
        if s and torch.rand((), generator=rng) < 0.7:  # start where an earlier stroke passes
            other = points[int(torch.randint(s, (), generator=rng))]
            joint = other[int(torch.randint(POINTS_PER_STROKE, (), generator=rng))]
            stroke = stroke - stroke[0] + joint
        points[s] = stroke
        weights[s] = torch.linalg.vector_norm(torch.gradient(stroke, dim=0)[0], dim=-1)
    drawn = points[:strokes].flatten(0, 1)
    lowest, highest = drawn.amin(0), drawn.amax(0)
    # Fit the glyph into a box of side 1.3 without changing its proportions.
    scale = 1.3 / float((highest - lowest).max())
    points = (points - (lowest + highest) / 2) * scale
    return points.flatten(0, 1), (weights * scale).flatten()


def _random_stroke(rng: torch.Generator) -> Tensor:
    """A straight line, a cubic Bézier curve, an arc or a closed loop: points (P, 2)."""
    t: Tensor = torch.linspace(0, 1, POINTS_PER_STROKE).unsqueeze(-1)
    kind = int(torch.randint(4, (), generator=rng))
    if kind == 0:
        ends = _uniform((2, 2), -0.7, 0.7, rng)
        return (1 - t) * ends[0] + t * ends[1]
    if kind == 1:
        control = _uniform((4, 2), -0.8, 0.8, rng)
        bernstein = [(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3]
        return torch.cat(bernstein, dim=-1) @ control
    sweep = 2 * math.pi if kind == 3 else float(_uniform((), 0.6 * math.pi, 1.7 * math.pi, rng))
    first = float(_uniform((), 0, 2 * math.pi, rng))
    radii = _uniform((2,), 0.2, 0.6, rng)
    angle = first + sweep * t
    return torch.cat([angle.cos(), angle.sin()], dim=-1) * radii + _uniform((2,), -0.3, 0.3, rng)


def _random_outlines(count: int, rng: torch.Generator) -> Tensor:
    """Fourier coefficients (count, H, 2) of log r(angle); a few dominate each shape."""
    coefficients = torch.randn(count, SHAPE_HARMONICS, 2, generator=rng)
    emphasis = torch.rand(count, SHAPE_HARMONICS, 1, generator=rng) ** 3
    return 0.3 * coefficients * emphasis


def _random_gratings(count: int, rng: torch.Generator) -> Tensor:
    """Wave vectors (count, W, 2) of 1 to 5 periods across the image, in any direction."""
    periods = _uniform((count, GRATINGS_PER_TEXTURE), 1.0, 5.0, rng)
    angle = _uniform((count, GRATINGS_PER_TEXTURE), 0, math.pi, rng)
    return (math.pi * periods).unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], dim=-1)


def _random_affine(count: int, variation: float, rng: torch.Generator) -> Tensor:
    """Matrices (count, 2, 2): turn, anisotropic scale and slant."""
    turn = variation * _uniform((count,), -MAX_TURN, MAX_TURN, rng)
    slant = variation * _uniform((count,), -0.2, 0.2, rng)
    scale_x, scale_y = 0.95 + variation * _uniform((2, count), -0.2, 0.2, rng)
    cos, sin = turn.cos(), turn.sin()
    rotation = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
    zero = torch.zeros(count)
    stretch = torch.stack(
        [torch.stack([scale_x, slant * scale_x], -1), torch.stack([zero, scale_y], -1)], -2
    )
    return rotation @ stretch


def _smooth_displacement(points: Tensor, amplitude: float, rng: torch.Generator) -> Tensor:
    """A different smooth vector field per image, evaluated at `points` (n, Q, 2)."""
    n = len(points)
    wave = _uniform((n, 3, 2), -4.0, 4.0, rng)
    phase = _uniform((n, 1, 3), 0, 2 * math.pi, rng)
    direction = torch.randn(n, 3, 2, generator=rng) * amplitude
    return torch.sin(points @ wave.transpose(1, 2) + phase) @ direction


def _photograph(ink: Tensor, rng: torch.Generator) -> Tensor:
    """Ink (n, 32, 32) to images (n, 3, 32, 32): scan resolution, tint, contrast and noise."""
    n = len(ink)
    coarse = functional.avg_pool2d(ink.unsqueeze(1), 4)
    coarse = functional.interpolate(coarse, size=IMAGE_SIZE, mode="bilinear").squeeze(1)
    low_resolution = torch.rand(n, 1, 1, generator=rng) < 0.4
    ink = torch.where(low_resolution, coarse, ink).unsqueeze(1)
    ground = _uniform((n, 1, 1, 1), 0.0, 0.2, rng)
    contrast = _uniform((n, 1, 1, 1), 0.5, 0.8, rng)
    tint = 1 + torch.randn(n, 3, 1, 1, generator=rng) * 0.05
    noise = torch.randn(n, 3, IMAGE_SIZE, IMAGE_SIZE, generator=rng)
    noise = noise * _uniform((n, 1, 1, 1), 0.0, 0.06, rng)
    return ((ground + contrast * ink) * tint + noise).clamp(0, 1)


def _pixel_centres() -> Tensor:
    return (torch.arange(IMAGE_SIZE) + 0.5) * (2 / IMAGE_SIZE) - 1


def _pixel_grid() -> Tensor:
    """(1, 32·32, 2) positions (x, y) of the pixel centres, row by row."""
    y, x = torch.meshgrid(_pixel_centres(), _pixel_centres(), indexing="ij")
    return torch.stack([x, y], dim=-1).view(1, -1, 2)


def _uniform(shape: tuple[int, ...], low: float, high: float, rng: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=rng) * (high - low) + low
