"""What all tests share: where the real traces are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every machine; `--hypothesis-profile=explore` looks for new ones.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real traces, beside the repository or where STEMROOT_SHARED_DATA says; the test is skipped without."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("STEMROOT_SHARED_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no real traces at {folder}")
    return folder
