"""Probes of all sources on the executors, and what follows from them for the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd
from pyspark.sql import SparkSession

from stemroot_spark.sources.discover import Source
from stemroot_spark.sources.probe import PROBE_SCHEMA, Probe, probe

# Every task in Python begins with a fraction of a second of its own, far more than the look at a small source.
_TASKS_PER_CORE = 4
_SHOWN = 10
_NULLABLE_INTEGERS = (
    "size_bytes",
    "n_rows",
    "n_copies",
    "session_start_ns",
    "claimed_rank",
    "world_size",
    "first_call_id",
)


@dataclass(frozen=True)
class Probed:
    """A source and what its probe found; ``duplicate_of`` names an earlier source with the same content."""

    index: int
    source: Source
    probe: Probe
    duplicate_of: str | None = None

    @property
    def status(self) -> str:
        """Status of the ledger: ingested, quarantined or duplicate."""
        if self.probe.reason is not None:
            return "quarantined"
        return "ingested" if self.duplicate_of is None else "duplicate"


@dataclass(frozen=True)
class ProbedSources:
    """All sources of a run, in the order of their names."""

    entries: list[Probed]

    @property
    def good(self) -> list[Probed]:
        """Sources to read."""
        return [entry for entry in self.entries if entry.status == "ingested"]

    @property
    def bad(self) -> list[Probed]:
        """Sources that cannot be used."""
        return [entry for entry in self.entries if entry.status == "quarantined"]

    def exceeds(self, max_bad_fraction: float) -> bool:
        """Whether more than this fraction is bad; compared as decimals, so that 29 of 100 are not more than 0.29."""
        return len(self.bad) > Fraction(str(max_bad_fraction)) * len(self.entries)

    def reasons(self) -> str:
        """Names and reasons of the first bad sources, in one line."""
        shown = [f"{entry.source.name}: {entry.probe.reason}" for entry in self.bad[:_SHOWN]]
        more = f"; and {len(self.bad) - _SHOWN} more" if len(self.bad) > _SHOWN else ""
        return "; ".join(shown) + more


def probe_sources(spark: SparkSession, sources: list[Source], wanted_format: str) -> ProbedSources:
    """Probe every source on the executors; one result per source, in the order given.

    Of sources with the same content, which is the same file under several names, only the first is read.
    """
    n_sources = len(sources)

    def look(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            rows = [probe(sources[index], wanted_format).row(index) for index in frame["id"]]
            yield pd.DataFrame(rows).astype(dict.fromkeys(_NULLABLE_INTEGERS, "Int64"))

    n_tasks = min(n_sources, _TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
    rows = spark.range(0, n_sources, 1, n_tasks).mapInPandas(look, PROBE_SCHEMA).collect()
    found = {
        row["source_index"]: Probe(**{k: v for k, v in row.asDict().items() if k != "source_index"})
        for row in rows
    }
    return ProbedSources(mark_duplicates(sources, [found[index] for index in range(n_sources)]))


def mark_duplicates(sources: list[Source], probes: list[Probe]) -> list[Probed]:
    """Sources with their probes; of usable sources with equal content all but the first are duplicates."""
    first: dict[str, str] = {}
    entries = []
    for index, (source, found) in enumerate(zip(sources, probes, strict=True)):
        original = None
        if found.reason is None and found.content_id is not None:
            original = first.setdefault(found.content_id, source.name)
        entries.append(Probed(index, source, found, None if original == source.name else original))
    return entries
