import os
from pathlib import Path

import pytest

SHARED = Path(
    os.environ.get("PFEDSEQ_SHARED_DATA")
    or Path(__file__).resolve().parents[2].parent / "shared/data"
)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real samples; its MANIFEST.md says what is in it."""
    if not SHARED.is_dir():
        pytest.skip(f"the real samples are not at {SHARED} (set PFEDSEQ_SHARED_DATA)")
    return SHARED
