"""Run the main job for one night: every ``{date}`` in the arguments becomes the date in UTC.

For schedulers that cannot put a date into arguments. ``STEMROOT_DATE=2026-01-31`` makes up for a missed night; a night
that was planned already writes nothing.
"""

import os
import runpy
import sys
from datetime import UTC, datetime
from pathlib import Path

PIPELINE = Path(__file__).resolve().parents[1] / "jobs" / "pipeline.py"


def main() -> None:
    """Fill in the date and become ``jobs/pipeline.py``, exit code included."""
    date = os.environ.get("STEMROOT_DATE") or datetime.now(UTC).date().isoformat()
    sys.argv = [str(PIPELINE), *(argument.replace("{date}", date) for argument in sys.argv[1:])]
    runpy.run_path(str(PIPELINE), run_name="__main__")


if __name__ == "__main__":
    main()
