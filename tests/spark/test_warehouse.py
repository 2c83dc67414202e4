"""Tables: reruns, other readers, metastore schemas, older tables, and several writers at a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import STEM_ROOT, Fleet
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support import Jobs

from stemroot_spark.config import IoConfig, load_config
from stemroot_spark.errors import (
    ConcurrentWriteError,
    DataError,
    FingerprintMismatchError,
)
from stemroot_spark.fingerprint import Fingerprint
from stemroot_spark.ingest import ingest
from stemroot_spark.tables import JobWrites, Location, Warehouse, ddl

_IO = IoConfig(commit_attempts=12, commit_backoff_s=0.05)
_REPOSITORY = Path(__file__).resolve().parents[2]


# Reruns.


def test_a_rerun_with_the_same_options_writes_nothing(fleet: Fleet) -> None:
    before = fleet.jobs.versions()
    assert {"runs", "kernel_launches", "kernel_moments", "plans", "sample_manifest"} <= set(before)
    options = ["ingest.max_bad_fraction=1"]
    for again in (
        lambda **more: fleet.jobs.ingest("night", fleet.root, overrides=options, **more),
        lambda **more: fleet.jobs.moments("night", **more),
        lambda **more: fleet.jobs.plan("night", "plan", overrides=STEM_ROOT, **more),
    ):
        # --replace replaces what differs; nothing does.
        assert again() == again(replace=True)
    # How the draw is computed changes no row, so it is no other plan.
    fleet.jobs.plan("night", "plan", overrides=[*STEM_ROOT, "draw.margin_sigma=0", "ingest.rows_per_batch=7"])
    assert fleet.jobs.versions() == before


def test_the_same_id_with_other_options_or_input_is_refused_naming_the_difference(fleet: Fleet) -> None:
    before = fleet.jobs.versions()
    with pytest.raises(
        FingerprintMismatchError, match=r"plan_id plan .*: epsilon was 0\.05, now 0\.02\. Use"
    ):
        fleet.jobs.plan("night", "plan", overrides=[*STEM_ROOT, "plan.epsilon=0.02"])
    with pytest.raises(FingerprintMismatchError, match="workload was None, now 'llm'"):
        fleet.jobs.ingest("night", fleet.root, workload="llm")
    with pytest.raises(FingerprintMismatchError, match="sources was "):
        fleet.jobs.ingest("night", fleet.root / "00 plain [1]")
    assert FingerprintMismatchError.exit_code == 2
    assert fleet.jobs.versions() == before


def test_replace_computes_an_id_anew_and_leaves_other_ids_alone(fleet: Fleet) -> None:
    fleet.jobs.plan("night", "coarse", overrides=[*STEM_ROOT, "plan.epsilon=0.3"])
    others = fleet.jobs.table("sample_manifest", plan_id="plan")
    replaced = fleet.jobs.plan("night", "coarse", overrides=[*STEM_ROOT, "plan.epsilon=0.2"], replace=True)
    assert replaced["epsilon"] == 0.2
    assert len(fleet.jobs.table("plans", plan_id="coarse")) == 1
    mine = fleet.jobs.table("sample_manifest", plan_id="coarse")
    assert len(mine) == replaced["n_samples"]
    assert fleet.jobs.table("sample_manifest", plan_id="plan").equals(others)
    history = DeltaTable(str(fleet.jobs.path / "plans")).history()
    metadata = json.loads(history[0]["userMetadata"])
    assert metadata["plan_id"] == "coarse"
    assert metadata["seed"] == 1
    assert metadata["input_versions"]["kernel_launches"] == fleet.jobs.versions()["kernel_launches"]
    assert metadata["code_version"]


def test_leftovers_of_a_stopped_job_are_replaced(spark: SparkSession, scratch: Path) -> None:
    warehouse = _warehouse(spark, scratch / "leftovers")
    stopped = _writes(warehouse, "r", epsilon=1)
    assert not stopped.is_done(replace=False)
    stopped.replace("rank_moments", _rows(spark, "r", 5))
    # Never finished: another fingerprint may take its place without --replace.
    second = _writes(warehouse, "r", epsilon=2)
    assert not second.is_done(replace=False)
    second.replace("rank_moments", _rows(spark, "r", 3))
    second.finish(_header(spark, "r"))
    assert len(Jobs(spark, scratch / "leftovers").table("rank_moments", run_id="r")) == 3
    assert _writes(warehouse, "r", epsilon=2).is_done(replace=False)


# Other readers.


def test_every_table_is_read_without_spark_and_explains_itself(fleet: Fleet) -> None:
    # The tables a fleet does not fill are made empty by reading them.
    warehouse = fleet.jobs.warehouse()
    for name in ddl.table_names():
        warehouse.read(name)
        table = DeltaTable(str(fleet.jobs.path / name))
        protocol = table.protocol()
        assert protocol.min_reader_version == 1, name
        assert not protocol.reader_features
        assert table.metadata().description == ddl.table_comment(name)
        fields = table.schema().fields
        assert [field.name for field in fields] == [column.name for column in ddl.columns(name)]
        for field, column in zip(fields, ddl.columns(name), strict=True):
            assert field.metadata.get("comment") == column.comment
            assert field.nullable is not column.required
        assert len(table.to_pyarrow_table()) == warehouse.read(name).count()
    clustered = json.dumps(DeltaTable(str(fleet.jobs.path / "kernel_launches")).history())
    assert "run_id" in clustered


def test_a_constraint_keeps_bad_rows_out(spark: SparkSession, scratch: Path) -> None:
    warehouse = _warehouse(spark, scratch / "constraints")
    bad = _rows(spark, "r", 1).withColumn("n", F.lit(0))
    with pytest.raises(PySparkException, match=r"(?i)n_positive"):
        warehouse.replace("rank_moments", bad, {"run_id": "r"}, {})
    assert Jobs(spark, scratch / "constraints").table("rank_moments").empty


def test_rows_without_a_declared_column_are_refused(spark: SparkSession, scratch: Path) -> None:
    warehouse = _warehouse(spark, scratch / "conform")
    with pytest.raises(DataError, match="rows for table rank_moments lack n, max_ns"):
        warehouse.replace("rank_moments", _rows(spark, "r", 1).drop("n", "max_ns"), {"run_id": "r"}, {})


def test_an_older_table_without_a_column_is_told_apart(spark: SparkSession, scratch: Path) -> None:
    root = scratch / "older"
    spark.sql(f"CREATE TABLE delta.`{root}/kernel_moments` (run_id STRING, n BIGINT) USING DELTA")
    with pytest.raises(
        DataError, match=r"kernel_moments.* has no column kernel_id, total_ns.*schemas/kernel_mom"
    ):
        _warehouse(spark, root).read("kernel_moments")


def test_a_folder_of_other_files_is_not_taken_for_a_table_being_made(
    spark: SparkSession, scratch: Path
) -> None:
    folder = scratch / "foreign" / "rank_moments"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine", "utf-8")
    with pytest.raises(DataError, match=r"cannot be made: .*may hold other files; use a new --warehouse"):
        _warehouse(spark, scratch / "foreign").create("rank_moments")


def test_a_read_stays_at_the_version_it_began_with(spark: SparkSession, scratch: Path) -> None:
    reader, writer = (_warehouse(spark, scratch / "pinned #1 50%20 [x]") for _ in range(2))
    writer.replace("rank_moments", _rows(spark, "a", 2), {"run_id": "a"}, {})
    assert reader.read("rank_moments").count() == 2
    commit = writer.replace("rank_moments", _rows(spark, "b", 5), {"run_id": "b"}, {})
    assert commit.rows == 5
    assert reader.read("rank_moments").count() == 2
    assert reader.input_versions("rank_moments", "runs") == {"rank_moments": int(commit.version or 0) - 1}
    assert writer.read("rank_moments").count() == 7
    reader.unpin("rank_moments")
    assert reader.read("rank_moments").count() == 7


# A metastore schema.


def test_tables_of_a_metastore_schema_are_written_and_read_by_name(fleet: Fleet, spark: SparkSession) -> None:
    warehouse = Warehouse(spark, Location(schema="spark_catalog.stemroot_test"), _IO)
    source = fleet.root / "02 ünï {x,y}"
    call: dict[str, Any] = {
        "sources": [str(source)],
        "run_id": "r",
        "workload": None,
        "rank": None,
        "config": load_config().ingest,
    }
    try:
        summary = ingest(warehouse, **call)
        assert summary["n_launches"] == fleet.good[source.name]["launches"]
        names = {row["tableName"] for row in spark.sql("SHOW TABLES IN stemroot_test").collect()}
        assert {"trace_files", "runs", "kernels", "launch_configs", "kernel_launches"} <= names
        counted = spark.sql("SELECT count(*) FROM stemroot_test.kernel_launches WHERE run_id = 'r'").first()
        assert counted is not None
        assert counted[0] == summary["n_launches"]
        version = warehouse.version("runs")
        again = Warehouse(spark, Location(schema="stemroot_test"), _IO)
        assert ingest(again, **call) == summary
        assert again.version("runs") == version
    finally:
        spark.sql("DROP SCHEMA IF EXISTS stemroot_test CASCADE")


# Several writers.


def _warehouse(spark: SparkSession, path: Path, io: IoConfig = _IO) -> Warehouse:
    return Warehouse(spark, Location(warehouse=str(path)), io)


def _writes(warehouse: Warehouse, run_id: str, **inputs: Any) -> JobWrites:
    return JobWrites(
        warehouse,
        job="test",
        header="kernel_moments",
        key={"run_id": run_id},
        fingerprint=Fingerprint(inputs),
    )


def _rows(spark: SparkSession, run_id: str, n_rows: int) -> DataFrame:
    """Rows of rank_moments."""
    return spark.range(n_rows).selectExpr(
        f"'{run_id}' AS run_id",
        "id AS rank",
        "7 AS kernel_id",
        *(f"1 AS {name}" for name in ("n", "sum_ns", "sum_sq", "min_ns", "max_ns")),
    )


def _header(spark: SparkSession, run_id: str) -> DataFrame:
    """Rows of kernel_moments, the header of the job in these tests."""
    names = ("n", "total_ns", "mean_ns", "stddev_ns", "cov", "min_ns", "max_ns", "time_share")
    shape = ("skewness", "excess_kurtosis", "first_window_ratio", "autocorrelation", "last_iteration")
    return spark.range(1).selectExpr(
        f"'{run_id}' AS run_id", "7 AS kernel_id", *(f"1 AS {n}" for n in names + shape)
    )


def _together(tasks: list[Callable[[], object]]) -> list[object]:
    """Results of tasks, or the errors they ended with, started at the same moment in a thread each."""
    barrier = threading.Barrier(len(tasks))
    outcomes: list[object] = [None] * len(tasks)

    def call(position: int) -> None:
        barrier.wait()
        try:
            outcomes[position] = tasks[position]()
        except Exception as error:
            outcomes[position] = error

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    return outcomes


def test_writers_of_different_ids_all_succeed(spark: SparkSession, scratch: Path) -> None:
    root = scratch / "different"

    def job(run_id: str) -> str:
        # As in processes of their own: the session's settings are not shared.
        session = spark.newSession()
        writes = _writes(_warehouse(session, root), run_id)
        assert not writes.is_done(replace=False)
        shared = session.range(3).selectExpr(
            "id AS kernel_id",
            "'k' AS kernel_name",
            "'k' AS short_name",
            "'other' AS category",
            "false AS is_communication",
        )
        writes.insert_new("kernels", shared, "kernel_id")
        assert writes.replace("rank_moments", _rows(session, run_id, 4)).rows == 4
        assert writes.finish(_header(session, run_id)).rows == 1
        return run_id

    names = ["a", "b", "c"]
    assert _together([lambda name=name: job(name) for name in names]) == names
    jobs = Jobs(spark, root)
    assert sorted(jobs.table("rank_moments")["run_id"]) == sorted(names * 4)
    assert sorted(jobs.table("kernel_moments")["run_id"]) == names
    assert sorted(jobs.table("kernels")["kernel_id"]) == [0, 1, 2]


def test_of_two_writers_of_the_same_id_one_wins_and_the_other_says_so(
    spark: SparkSession, scratch: Path
) -> None:
    root = scratch / "same"
    first, second = (_writes(_warehouse(spark, root), "r", writer=1) for _ in range(2))
    assert not first.is_done(replace=False)
    assert not second.is_done(replace=False)
    first.replace("rank_moments", _rows(spark, "r", 2))
    second.replace("rank_moments", _rows(spark, "r", 3))
    with pytest.raises(ConcurrentWriteError, match="another writer replaced run_id r while"):
        first.finish(_header(spark, "r"))
    second.finish(_header(spark, "r"))
    third = _writes(_warehouse(spark, root), "r", writer=1)
    assert third.is_done(replace=False)
    with pytest.raises(ConcurrentWriteError, match="another writer completed run_id r"):
        first.replace("rank_moments", _rows(spark, "r", 2))
    jobs = Jobs(spark, root)
    assert len(jobs.table("rank_moments")) == 3
    assert len(jobs.table("kernel_moments")) == 1


class _Interrupted(Warehouse):
    """Lets another writer act between the check that an id is free and the commit to a table."""

    def __init__(self, spark: SparkSession, path: Path, table: str, action: Callable[[], object]) -> None:
        super().__init__(spark, Location(warehouse=str(path)), _IO)
        self._table, self._action = table, action

    def replace(self, table: str, *args: Any, **kwargs: Any) -> Any:
        *most, before_commit = args
        if table != self._table:
            return super().replace(table, *args, **kwargs)
        before_commit()
        self._table = ""
        self._action()
        return super().replace(table, *most, None, **kwargs)


def _complete(jobs: Jobs, run_id: str) -> None:
    """An id with a header holds the rows of the writer of the header: as many as its fingerprint says."""
    headers = jobs.table("kernel_moments", run_id=run_id)
    assert len(headers) <= 1
    for inputs in headers["fingerprint_inputs"]:
        assert len(jobs.table("rank_moments", run_id=run_id)) == json.loads(inputs)["rows"]


@pytest.mark.parametrize("has_same_options", [True, False])
def test_rows_that_come_after_the_header_of_another_writer_take_it_away(
    has_same_options: bool, spark: SparkSession, scratch: Path
) -> None:
    root = scratch / f"late-rows-{has_same_options}"
    late_rows = 2 if has_same_options else 3
    winner = _writes(_warehouse(spark, root), "r", rows=2)
    winner.is_done(replace=False)
    winner.replace("rank_moments", _rows(spark, "r", 2))
    warehouse = _Interrupted(spark, root, "rank_moments", lambda: winner.finish(_header(spark, "r")))
    late = _writes(warehouse, "r", rows=late_rows)
    assert not late.is_done(replace=False)
    message = "its rows stand" if has_same_options else "counts as incomplete now; rerun"
    with pytest.raises(ConcurrentWriteError, match=message):
        late.replace("rank_moments", _rows(spark, "r", late_rows))
    jobs = Jobs(spark, root)
    _complete(jobs, "r")
    assert len(jobs.table("kernel_moments")) == int(has_same_options)


def test_a_header_that_comes_after_the_rows_of_another_writer_does_not_stay(
    spark: SparkSession, scratch: Path
) -> None:
    root = scratch / "late-header"
    other = _writes(_warehouse(spark, root), "r", rows=3)
    other.is_done(replace=False)
    warehouse = _Interrupted(
        spark, root, "kernel_moments", lambda: other.replace("rank_moments", _rows(spark, "r", 3))
    )
    late = _writes(warehouse, "r", rows=2)
    assert not late.is_done(replace=False)
    late.replace("rank_moments", _rows(spark, "r", 2))
    with pytest.raises(ConcurrentWriteError, match="counts as incomplete now; rerun"):
        late.finish(_header(spark, "r"))
    other.finish(_header(spark, "r"))
    _complete(Jobs(spark, root), "r")


def test_two_writers_of_the_same_id_at_the_same_time_leave_no_mixture(
    spark: SparkSession, scratch: Path
) -> None:
    root = scratch / "race"

    def job(n_rows: int) -> int:
        session = spark.newSession()
        writes = _writes(_warehouse(session, root), "r", rows=n_rows)
        writes.is_done(replace=False)
        writes.replace("rank_moments", _rows(session, "r", n_rows))
        writes.finish(_header(session, "r"))
        return n_rows

    outcomes = _together([lambda n=n: job(n) for n in (2, 3)])
    losers = [outcome for outcome in outcomes if isinstance(outcome, ConcurrentWriteError)]
    assert losers, outcomes
    assert all(isinstance(outcome, int | ConcurrentWriteError) for outcome in outcomes), outcomes
    _complete(Jobs(spark, root), "r")
    # Whoever reruns now completes it.
    if Jobs(spark, root).table("kernel_moments").empty:
        assert job(5) == 5
    _complete(Jobs(spark, root), "r")


@pytest.mark.parametrize(
    "conflict",
    [
        ConcurrentAppendException,
        ConcurrentDeleteReadException,
        ConcurrentWriteException,
        MetadataChangedException,
        ProtocolChangedException,
    ],
)
def test_conflicts_without_end_are_reported(
    conflict: type[Exception], spark: SparkSession, scratch: Path
) -> None:
    io = IoConfig(commit_attempts=3, commit_backoff_s=0.0)
    warehouse = _warehouse(spark, scratch / "endless", io)
    attempts = []

    def always_late() -> None:
        attempts.append(1)
        raise conflict("another commit")

    with pytest.raises(ConcurrentWriteError, match=r"runs.* other writers were first 3 times"):
        warehouse._retry("runs", always_late, None)
    assert len(attempts) == 3


# A Hive metastore, in a process of its own: its database is bound to the working directory.


@pytest.mark.slow
def test_a_job_writes_to_a_hive_metastore(fleet: Fleet, scratch: Path) -> None:
    folder = scratch / "hive"
    folder.mkdir()
    properties = {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    environment = {
        **os.environ,
        "STEMROOT_SPARK_CONF": ";".join(f"{key}={value}" for key, value in properties.items()),
        "PYTHONPATH": str(_REPOSITORY),
    }
    command = [
        sys.executable,
        str(_REPOSITORY / "jobs" / "ingest.py"),
        "--schema",
        "llm_fleet",
        "--run-id",
        "r",
    ]
    done = subprocess.run(
        [*command, "--source", str(fleet.root / "02 ünï {x,y}")],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["n_launches"] == fleet.good["02 ünï {x,y}"]["launches"]
    assert (folder / "metastore_db").is_dir()
    table = DeltaTable(str(folder / "warehouse" / "llm_fleet.db" / "kernel_launches"))
    assert len(table.to_pyarrow_table()) == summary["n_launches"]
