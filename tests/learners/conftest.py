"""Fixtures of the learners' tests."""

from collections.abc import Iterator

import pytest

from pfedseq.errors import InputError
from pfedseq.learners import layerwise
from pfedseq.learners.fused_mamba import fused_mamba, load_variant


@pytest.fixture
def tiny_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a row or two, so that a small test crosses chunk borders."""
    monkeypatch.setattr(layerwise, "_GRAPH_BYTES", 40_000)


@pytest.fixture(params=["off", "baseline", "avx2", "avx512"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every way that float32 on the CPU can go: plain PyTorch and each variant of the kernel."""
    variant: str = request.param
    if variant != "off":
        try:
            load_variant(variant)
        except (FileNotFoundError, InputError) as reason:
            pytest.skip(str(reason))
    monkeypatch.setenv("PFEDSEQ_MAMBA_KERNEL", variant)
    fused_mamba.cache_clear()
    yield variant
    fused_mamba.cache_clear()
