"""Tables: reruns, other readers, metastore schemas, and older tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import STEM_ROOT, Fleet
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from support import IO, Jobs, open_warehouse, rank_rows

from stemroot_spark.config import load_config
from stemroot_spark.errors import (
    DataError,
    FingerprintMismatchError,
)
from stemroot_spark.ingest import ingest
from stemroot_spark.tables import Location, Warehouse, ddl

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
    warehouse = open_warehouse(spark, scratch / "constraints")
    bad = rank_rows(spark, "r", 1).withColumn("n", F.lit(0))
    with pytest.raises(PySparkException, match=r"(?i)n_positive"):
        warehouse.replace("rank_moments", bad, {"run_id": "r"}, {})
    assert Jobs(spark, scratch / "constraints").table("rank_moments").empty


def test_rows_without_a_declared_column_are_refused(spark: SparkSession, scratch: Path) -> None:
    warehouse = open_warehouse(spark, scratch / "conform")
    with pytest.raises(DataError, match="rows for table rank_moments lack n, max_ns"):
        warehouse.replace("rank_moments", rank_rows(spark, "r", 1).drop("n", "max_ns"), {"run_id": "r"}, {})


def test_an_older_table_without_a_column_is_told_apart(spark: SparkSession, scratch: Path) -> None:
    root = scratch / "older"
    spark.sql(f"CREATE TABLE delta.`{root}/kernel_moments` (run_id STRING, n BIGINT) USING DELTA")
    with pytest.raises(
        DataError, match=r"kernel_moments.* has no column kernel_id, total_ns.*schemas/kernel_mom"
    ):
        open_warehouse(spark, root).read("kernel_moments")


def test_a_folder_of_other_files_is_not_taken_for_a_table_being_made(
    spark: SparkSession, scratch: Path
) -> None:
    folder = scratch / "foreign" / "rank_moments"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine", "utf-8")
    with pytest.raises(DataError, match=r"cannot be made: .*may hold other files; use a new --warehouse"):
        open_warehouse(spark, scratch / "foreign").create("rank_moments")


def test_a_read_stays_at_the_version_it_began_with(spark: SparkSession, scratch: Path) -> None:
    reader, writer = (open_warehouse(spark, scratch / "pinned #1 50%20 [x]") for _ in range(2))
    writer.replace("rank_moments", rank_rows(spark, "a", 2), {"run_id": "a"}, {})
    assert reader.read("rank_moments").count() == 2
    commit = writer.replace("rank_moments", rank_rows(spark, "b", 5), {"run_id": "b"}, {})
    assert commit.rows == 5
    assert reader.read("rank_moments").count() == 2
    assert reader.input_versions("rank_moments", "runs") == {"rank_moments": int(commit.version or 0) - 1}
    assert writer.read("rank_moments").count() == 7
    reader.unpin("rank_moments")
    assert reader.read("rank_moments").count() == 7


# A metastore schema.


def test_tables_of_a_metastore_schema_are_written_and_read_by_name(fleet: Fleet, spark: SparkSession) -> None:
    warehouse = Warehouse(spark, Location(schema="spark_catalog.stemroot_test"), IO)
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
        again = Warehouse(spark, Location(schema="stemroot_test"), IO)
        assert ingest(again, **call) == summary
        assert again.version("runs") == version
    finally:
        spark.sql("DROP SCHEMA IF EXISTS stemroot_test CASCADE")


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
