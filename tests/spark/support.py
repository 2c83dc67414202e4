"""Helpers of the Spark tests: running the stages, and reading tables and traces without the code under test."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from stemroot_spark.config import Config, IoConfig, load_config
from stemroot_spark.ingest import ingest
from stemroot_spark.moments import moments
from stemroot_spark.planning import plan
from stemroot_spark.reconstruct import reconstruct
from stemroot_spark.results import import_results
from stemroot_spark.tables import Location, Warehouse

# Many attempts and short pauses: writers of a test meet often.
IO = IoConfig(commit_attempts=12, commit_backoff_s=0.05)
KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
CONFIG = {
    "gridX": "grid_x",
    "gridY": "grid_y",
    "gridZ": "grid_z",
    "blockX": "block_x",
    "blockY": "block_y",
    "blockZ": "block_z",
    "dynamicSharedMemory": "dynamic_shared_memory_bytes",
    "clusterX": "cluster_x",
    "clusterY": "cluster_y",
    "clusterZ": "cluster_z",
}


@dataclass(frozen=True)
class Jobs:
    """The stages over one warehouse folder; a new Warehouse per call, as every job has its own."""

    spark: SparkSession
    path: Path

    def warehouse(self, overrides: Sequence[str] = ()) -> Warehouse:
        return Warehouse(self.spark, Location(warehouse=str(self.path)), _config(overrides).io)

    def ingest(
        self, run_id: str, *sources: Path | str, overrides: Sequence[str] = (), **options: Any
    ) -> dict[str, Any]:
        return ingest(
            self.warehouse(),
            sources=[str(source) for source in sources],
            run_id=run_id,
            config=_config(overrides).ingest,
            **{"workload": None, "rank": None, **options},
        )

    def moments(self, run_id: str, **options: Any) -> dict[str, Any]:
        return moments(self.warehouse(), run_id=run_id, **options)

    def plan(
        self, run_id: str, plan_id: str, *, overrides: Sequence[str] = (), **options: Any
    ) -> dict[str, Any]:
        return plan(self.warehouse(), run_id=run_id, plan_id=plan_id, config=_config(overrides), **options)

    def import_results(self, plan_id: str, results_id: str, **options: Any) -> dict[str, Any]:
        absent = {"simulator": "csv", "source": None, "from_run_id": None, "clock_mhz": None}
        return import_results(
            self.warehouse(), plan_id=plan_id, results_id=results_id, **{**absent, **options}
        )

    def reconstruct(self, plan_id: str, results_id: str, **options: Any) -> dict[str, Any]:
        return reconstruct(self.warehouse(), plan_id=plan_id, results_id=results_id, **options)

    def table(self, name: str, **where: str) -> pd.DataFrame:
        """Rows of a table by a reader without Spark; ``where`` keeps rows with the given ids."""
        rows = DeltaTable(str(self.path / name)).to_pyarrow_table().to_pandas()
        for column, value in where.items():
            rows = rows[rows[column] == value]
        return rows.reset_index(drop=True)

    def ranks(self, run_id: str) -> dict[tuple[str, int], int]:
        """Rank of every process of a run, by source name and process key."""
        ledger = self.table("trace_files", run_id=run_id)
        found = ledger[ledger["status"] == "ingested"]
        keys = zip(found["source_uri"], found["process_key"].map(int), strict=True)
        return dict(zip(keys, found["rank"].map(int), strict=True))

    def versions(self) -> dict[str, int]:
        """Version of every table that was written to; reading creates absent ones at version 0."""
        versions = {
            folder.name: DeltaTable(str(folder)).version()
            for folder in sorted(self.path.iterdir())
            if (folder / "_delta_log").is_dir()
        }
        return {name: version for name, version in versions.items() if version > 0}


def _config(overrides: Sequence[str]) -> Config:
    return load_config(overrides=overrides)


def trace_rows(source: Path) -> pd.DataFrame:
    """Kernel rows of an export by column name, with kernel_name; missing columns are null."""
    if source.is_dir():
        kernels = pq.read_table(source / f"{KERNEL}.parquet").to_pandas(integer_object_nulls=True)
        strings = pq.read_table(source / "StringIds.parquet").to_pydict()
        names = dict(zip(strings["id"], strings["value"], strict=True))
    else:
        with closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as database:
            cursor = database.execute(f"SELECT * FROM {KERNEL}")
            columns = [column[0] for column in cursor.description]
            kernels = pd.DataFrame(cursor.fetchall(), columns=columns, dtype=object)
            names = dict(database.execute("SELECT id, value FROM StringIds").fetchall())
    return kernels.assign(kernel_name=[names.get(key) for key in kernels["demangledName"]])


def numbered(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of one process in order of launch, with launch_index, kernel_invocation and duration_ns, rejects too."""
    ordered = rows.sort_values(["correlationId", "start"], kind="stable").reset_index(drop=True)
    return ordered.assign(
        launch_index=range(len(ordered)),
        kernel_invocation=ordered.groupby("demangledName").cumcount(),
        duration_ns=ordered["end"] - ordered["start"],
    )


def to_sqlite(folder: Path, target: Path) -> None:
    """Convert an exported folder of tables to an export in one sqlite file, large unsigned values as nsys has them."""
    with closing(sqlite3.connect(target)) as database, database:
        for file in sorted(folder.glob("*.parquet")):
            table = pq.read_table(file)
            names = ", ".join(f'"{name}"' for name in table.column_names)
            database.execute(f'CREATE TABLE "{file.stem}" ({names})')
            marks = ", ".join("?" for _ in table.column_names)
            database.executemany(
                f'INSERT INTO "{file.stem}" VALUES ({marks})',
                ([_signed(value) for value in row.values()] for row in table.to_pylist()),
            )


def _signed(value: Any) -> Any:
    return value - 2**64 if isinstance(value, int) and value >= 2**63 else value


def change_rows(folder: Path, changes: dict[int, dict[str, int | None]]) -> None:
    """Change cells of the kernel table of an exported folder: row -> column -> value."""
    path = folder / f"{KERNEL}.parquet"
    table = pq.read_table(path)
    columns = {name: table[name].to_pylist() for name in table.column_names}
    for row, cells in changes.items():
        for name, value in cells.items():
            columns[name][row] = value
    pq.write_table(pa.table(columns, schema=table.schema), path)


def texts_of(frames: Iterable[pd.DataFrame]) -> str:
    """Everything that stands in tables, as one text to search."""
    return "\n".join(frame.to_csv(index=False) for frame in frames)


def open_warehouse(spark: SparkSession, path: Path, io: IoConfig = IO) -> Warehouse:
    """Warehouse as a job of its own would have it."""
    return Warehouse(spark, Location(warehouse=str(path)), io)


def rank_rows(spark: SparkSession, run_id: str, n_rows: int) -> DataFrame:
    """Rows of rank_moments."""
    return spark.range(n_rows).selectExpr(
        f"'{run_id}' AS run_id",
        "id AS rank",
        "7 AS kernel_id",
        *(f"1 AS {name}" for name in ("n", "sum_ns", "sum_sq", "min_ns", "max_ns")),
    )
