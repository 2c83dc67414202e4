"""Import of features: files of ncu metrics, instruction counts or basic-block vectors -> kernel_features."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from pyspark.sql import functions as F

from stemroot_spark.errors import UsageError
from stemroot_spark.evaluation.feature_files import FeatureFile, read_features
from stemroot_spark.evaluation.features import check_shapes
from stemroot_spark.evaluation.population import Population
from stemroot_spark.fingerprint import Fingerprint
from stemroot_spark.local_rows import local_rows
from stemroot_spark.progress import stage
from stemroot_spark.sources.storage import file_content_id, local_copy
from stemroot_spark.tables import JobWrites, Warehouse

_WITH_RANK = re.compile(r"(\d{1,9})=(.+)", re.DOTALL)
_SCHEMA = "rank INT, launch_index BIGINT, feature STRING, value DOUBLE, unit STRING"


def import_features(
    warehouse: Warehouse,
    run: dict[str, Any],
    population: Population,
    sources: Sequence[str],
    *,
    replace: bool,
) -> None:
    """Import files, each a URI or RANK=URI, for a run whose launches are the population.

    The kind of a file is recognised by its content. Files of one kind replace what the run had of that kind; what was
    imported from the same files already is left alone. UsageError for an unreadable file or two of one kind and rank,
    SourceError for a malformed one, DataError for one of other launches.
    """
    by_kind: dict[str, dict[int, tuple[FeatureFile, str]]] = {}
    for source in sources:
        rank, uri = _rank_and_uri(source)
        digest, found = file_content_id(uri, "--features"), _read(uri)
        files = by_kind.setdefault(found.kind, {})
        if rank in files:
            raise UsageError(
                f"--features {uri}: a second file of {found.kind} for rank {rank}; write RANK=URI for others"
            )
        with stage(f"match {found.kind} of rank {rank}") as report:
            report.rows = check_shapes(population, rank, found.shapes, uri)
        files[rank] = found, digest
    for kind, files in by_kind.items():
        digests = {str(rank): digest for rank, (_, digest) in sorted(files.items())}
        writes = JobWrites(
            warehouse,
            job="evaluate",
            header="kernel_features",
            key={"run_id": str(run["run_id"]), "feature_kind": kind},
            fingerprint=Fingerprint({"run": run["fingerprint"], "files": digests}),
        )
        if not writes.is_done(replace):
            parts = [found.rows.assign(rank=rank) for rank, (found, _) in sorted(files.items())]
            rows = pd.concat(parts, ignore_index=True)[["rank", "launch_index", "feature", "value", "unit"]]
            frame = local_rows(warehouse.spark, rows.itertuples(index=False, name=None), _SCHEMA)
            writes.finish(frame.withColumns({"run_id": F.lit(run["run_id"]), "feature_kind": F.lit(kind)}))


def feature_fingerprints(warehouse: Warehouse, run_id: str) -> dict[str, str]:
    """Fingerprint of each kind of features that a run has."""
    rows = (
        warehouse.read("kernel_features")
        .where(F.col("run_id") == run_id)
        .select("feature_kind", "fingerprint")
        .distinct()
        .collect()
    )
    return {str(row[0]): str(row[1]) for row in sorted(rows)}


def _rank_and_uri(source: str) -> tuple[int, str]:
    found = _WITH_RANK.fullmatch(source)
    return (int(found[1]), found[2]) if found else (0, source)


def _read(uri: str) -> FeatureFile:
    # What cannot be decoded stands in text that is not kept; numbers are ASCII.
    with local_copy(uri) as path, path.open(encoding="utf-8", errors="replace", newline="") as lines:
        return read_features(lines, uri)
