"""One local session for all Spark tests of a process, and the two warehouses most of them read.

Spark starts slowly and a Delta commit takes seconds, so each trace is ingested once per test process.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from support import KERNEL, Jobs, change_rows, to_sqlite

from stemroot_spark.errors import TooManyBadSourcesError
from stemroot_spark.fleet import FleetSpec, WriterOptions, write_fleet
from stemroot_spark.session import start_session

# The plan that the tests of samples, results and reruns share.
STEM_ROOT = ("plan.method=stem-root",)
_DAY_NS = 86_400_000_000_000
_SPEC = FleetSpec(ranks=1, layers=1, iterations=4, seed=11, evaluation_interval_iterations=3)
_PROPERTIES = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1500m",
    "spark.driver.host": "localhost",
}


def pytest_configure(config: pytest.Config) -> None:
    """PySpark leaves sockets to the garbage collector, which may find them during any later test."""
    config.addinivalue_line("markers", "slow: starts a Spark of its own; leave out with -m 'not slow'")
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket.socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local session as a job has it when it is started with plain python."""
    log_settings = Path(__file__).resolve().parents[2] / "conf" / "log4j2.properties"
    properties = {
        **_PROPERTIES,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("spark-warehouse")),
        "spark.driver.extraJavaOptions": "-XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC -Xmn512m "
        f"-Dlog4j2.configurationFile={log_settings.as_uri()}",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEMROOT_SPARK_CONF", ";".join(f"{k}={v}" for k, v in properties.items()))
        # Test processes beside each other would fetch Spark's packages into one cache at once.
        with (tmp_path_factory.getbasetemp().parent / "session.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            session = start_session("stemroot-tests")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """Folder of a test module."""
    return tmp_path_factory.mktemp(str(request.module.__name__))


@pytest.fixture(scope="session")
def real(spark: SparkSession, shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Real traces: run ``h100`` from Parquet; run ``mixed`` from h100 as sqlite, gaussian and saxpy."""
    jobs = Jobs(spark, tmp_path_factory.mktemp("real"))
    parquet = shared_data / "nsys_parquetdir"
    jobs.ingest("h100", parquet / "h100_2rank_llm_2026.2", workload="llm")
    jobs.ingest(
        "mixed",
        parquet / "rodinia_gaussian_2022.4",
        parquet / "saxpy_mpi_2022.2_nonlazy",
        shared_data / "nsys_sqlite" / "h100_2rank_llm_2026.2.sqlite",
    )
    jobs.moments("h100")
    jobs.moments("mixed")
    return jobs


@dataclass(frozen=True)
class Fleet:
    """Run ``night`` of generated sources; a source is (name, truth); ranks are positions in ``good``."""

    jobs: Jobs
    root: Path
    good: dict[str, dict[str, Any]]
    bad: tuple[str, ...]
    error: str


# Row of the kernel table of the last good source -> what is wrong with it.
BAD_ROWS = {
    10: "end_before_start",
    20: "zero_duration",
    30: "impossible_duration",
    40: "null_name",
    50: "null_time",
    60: "null_name",
}


NONE_32 = 2**32 - 1


def _spoil(folder: Path) -> None:
    """Rows that are no launches, and a column of which the writer knew no type."""
    start = pq.read_table(folder / f"{KERNEL}.parquet", columns=["start"])["start"].to_pylist()
    change_rows(
        folder,
        {
            10: {"end": start[10] - 1},
            20: {"end": start[20]},
            30: {"end": start[30] + _DAY_NS + 1},
            40: {"demangledName": 4_000_000_000},
            50: {"start": None},
            60: {"demangledName": None},
        },
    )
    path = folder / f"{KERNEL}.parquet"
    table = pq.read_table(path).drop_columns(["graphNodeId"])
    pq.write_table(table.append_column("graphNodeId", pa.nulls(len(table))), path)


def _write_none_as_nsys_does(source: Path) -> None:
    """2^32 - 1 stands for "none" in unsigned columns; the first two rows have it."""
    if source.is_dir():
        change_rows(source, {row: {"deviceId": NONE_32, "streamId": NONE_32} for row in (0, 1)})
    else:
        with closing(sqlite3.connect(source)) as database, database:
            database.execute(
                f"UPDATE {KERNEL} SET deviceId = ?, streamId = ? WHERE rowid <= 2", (NONE_32,) * 2
            )


def write_source(scratch: Path, target: Path, options: WriterOptions, night: int) -> dict[str, Any]:
    """One rank of the fleet as a folder of tables (or a sqlite file by its suffix); returns its truth."""
    spec = FleetSpec(**{**_SPEC.__dict__, "night": night})
    made = scratch / f"made-{night}-{target.name}"
    truth = write_fleet(made, spec, options)
    if target.suffix == ".sqlite":
        to_sqlite(made / "rank-00000", target)
    else:
        shutil.move(made / "rank-00000", target)
    return json.loads(json.dumps(truth))


@pytest.fixture(scope="session")
def fleet(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """Six good sources of five schema versions and two formats under awkward names, and two bad ones."""
    scratch = tmp_path_factory.mktemp("made")
    root = tmp_path_factory.mktemp("traces") / "night #1 50%20 [a]"
    root.mkdir()
    options = {
        "00 plain [1]": WriterOptions(plant_secrets=True),
        "01 50%20 off#1": WriterOptions(schema_version="oldest"),
        "02 ünï {x,y}": WriterOptions(schema_version="2.9.1", hardware_id=200),
        "03 a?b*c.sqlite": WriterOptions(schema_version="3.13.2", hardware_id=255, plant_secrets=True),
        "04-not-lazy": WriterOptions(schema_version="3.1.7", is_lazy=False),
        "05-bad-rows": WriterOptions(schema_version="3.25.0"),
    }
    good = {
        name: write_source(scratch, root / name, option, night)
        for night, (name, option) in enumerate(options.items())
    }
    _spoil(root / "05-bad-rows")
    _write_none_as_nsys_does(root / "00 plain [1]")
    _write_none_as_nsys_does(root / "03 a?b*c.sqlite")
    shutil.copytree(root / "04-not-lazy", root / "06-cut")
    kernel = root / "06-cut" / f"{KERNEL}.parquet"
    kernel.write_bytes(kernel.read_bytes()[:-100])
    whole = (root / "03 a?b*c.sqlite").read_bytes()
    (root / "07-cut.sqlite").write_bytes(whole[: len(whole) // 2])
    (root / "notes.txt").write_text("passed over\n", "utf-8")

    jobs = Jobs(spark, tmp_path_factory.mktemp("warehouse"))
    with pytest.raises(TooManyBadSourcesError) as raised:
        jobs.ingest("night", root)
    jobs.moments("night")
    jobs.plan("night", "plan", overrides=STEM_ROOT)
    return Fleet(jobs, root, good, ("06-cut", "07-cut.sqlite"), str(raised.value))
