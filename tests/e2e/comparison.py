"""Tables compared row for row without Spark, leaving out what tells when a row was written."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from deltalake import DeltaTable

PIPELINE_TABLES = (
    "trace_files",
    "runs",
    "kernels",
    "launch_configs",
    "kernel_launches",
    "duration_histograms",
    "rank_moments",
    "kernel_moments",
    "split_decisions",
    "strata",
    "sample_manifest",
    "plans",
)
# Delta versions differ between warehouses with another past.
_NOT_COMPARED = ("ingested_at", "planned_at", "estimated_at", "input_versions")


def rows(warehouse: Path, table: str) -> pd.DataFrame:
    frame = DeltaTable(str(warehouse / table)).to_pandas()
    frame = frame.drop(columns=[name for name in _NOT_COMPARED if name in frame.columns])
    for name in frame.columns:
        if frame[name].map(lambda value: hasattr(value, "tolist")).any():
            frame[name] = frame[name].map(str)
    return frame.sort_values(list(frame.columns), ignore_index=True)


def assert_same_tables(left: Path, right: Path, tables: tuple[str, ...] = PIPELINE_TABLES) -> None:
    for table in tables:
        pd.testing.assert_frame_equal(rows(left, table), rows(right, table), obj=table)


def versions(warehouse: Path) -> dict[str, int]:
    return {
        folder.name: DeltaTable(str(folder)).version()
        for folder in sorted(warehouse.iterdir())
        if (folder / "_delta_log").is_dir()
    }
