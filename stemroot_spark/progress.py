"""Progress of a job: one line per stage on stderr, the JSON summary on stdout."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Stage:
    """What a stage reports when it ends; ``rows``, ``table`` and ``version`` are left out where they do not apply."""

    name: str
    rows: int | None = None
    table: str | None = None
    version: int | None = None


# Called with every stage that ended; a program that shows its own progress adds itself here.
listeners: list[Callable[[Stage], None]] = []


def log(message: str) -> None:
    """Print one line to stderr, after whatever progress bar stands there."""
    print(f"stemroot {time.strftime('%H:%M:%S', time.gmtime())} {message}", file=sys.stderr, flush=True)


@contextmanager
def stage(name: str) -> Iterator[Stage]:
    """Time a stage and log one line when it ends without an error."""
    started = time.monotonic()
    report = Stage(name)
    yield report
    parts = [name]
    if report.rows is not None:
        parts.append(f"rows={report.rows}")
    parts.append(f"seconds={time.monotonic() - started:.1f}")
    if report.table is not None:
        parts.append(f"table={report.table}")
    if report.version is not None:
        parts.append(f"version={report.version}")
    log(" ".join(parts))
    for listener in listeners:
        listener(report)
