"""Files of a generated fleet, for its tests."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from stemroot_spark.fleet import (
    FleetSpec,
)

SEED = 20_260_302


SMALL = FleetSpec(ranks=2, layers=2, iterations=6, seed=SEED, evaluation_interval_iterations=4)


def read_table(folder: Path, table: str, rank: int = 0) -> dict[str, Any]:
    """A table of one rank as numpy columns (lists where there are nulls or texts)."""
    columns = pq.read_table(folder / f"rank-{rank:05d}" / f"{table}.parquet")
    return {
        name: columns[name].to_pylist() if columns[name].null_count else columns[name].to_numpy()
        for name in columns.column_names
    }


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}
