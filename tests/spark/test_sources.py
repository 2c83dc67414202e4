"""What a real fleet hands in: mixed versions and formats, hundreds of sources, broken, renamed and changed ones."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Fleet
from pyspark.sql import SparkSession
from support import KERNEL, Jobs, to_sqlite

from stemroot_spark.errors import FingerprintMismatchError
from stemroot_spark.fleet import PLANTED_SECRETS, FleetSpec, WriterOptions, write_fleet

GRAPH = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
LAUNCHES_PER_SOURCE = 20


def small_source(folder: Path, seed: int, name: str = "gemm_kernel") -> None:
    """A folder of tables with a few launches of its own."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    start = np.cumsum(rng.integers(1_000, 9_000, LAUNCHES_PER_SOURCE))
    columns = {
        "start": start,
        "end": start + rng.integers(100, 900, LAUNCHES_PER_SOURCE),
        "demangledName": np.ones(LAUNCHES_PER_SOURCE, np.int32),
        "correlationId": np.arange(LAUNCHES_PER_SOURCE, dtype=np.int32),
    }
    pq.write_table(pa.table(columns), folder / f"{KERNEL}.parquet")
    pq.write_table(pa.table({"id": [1], "value": [name]}), folder / "StringIds.parquet")


def _cut(folder: Path) -> None:
    path = folder / f"{KERNEL}.parquet"
    path.write_bytes(path.read_bytes()[:-200])


def _without_kernels(folder: Path) -> None:
    (folder / f"{KERNEL}.parquet").unlink()


def _empty(folder: Path) -> None:
    path = folder / f"{KERNEL}.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)


def _without_names(folder: Path) -> None:
    (folder / "StringIds.parquet").unlink()


def _text_times(folder: Path) -> None:
    path = folder / f"{KERNEL}.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(0, "start", pa.array(["x"] * len(table))), path)


def _damaged_page(folder: Path) -> None:
    path = folder / "StringIds.parquet"
    content = bytearray(path.read_bytes())
    content[4:60] = b"\xff" * 56
    path.write_bytes(content)


def _bomb(folder: Path) -> None:
    path = folder / f"{KERNEL}.parquet"
    n = 5_000_000
    same = pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int8)), pa.array([5], pa.int64()))
    pq.write_table(pa.table(dict.fromkeys(("start", "end", "demangledName"), same)), path, compression="zstd")


def _linked(folder: Path) -> None:
    outside = folder.parents[1] / "outside"
    if not outside.exists():
        small_source(outside, 999)
    shutil.rmtree(folder)
    folder.symlink_to(outside)


def _cut_sqlite(folder: Path) -> None:
    target = folder.with_suffix(".sqlite")
    to_sqlite(folder, target)
    shutil.rmtree(folder)
    target.write_bytes(target.read_bytes()[:-1_000])


def _foreign_sqlite(folder: Path) -> None:
    shutil.rmtree(folder)
    with closing(sqlite3.connect(folder.with_suffix(".sqlite"))) as database, database:
        database.execute("CREATE TABLE something (x)")


WAYS: list[Callable[[Path], None]] = [
    _cut,
    _without_kernels,
    _empty,
    _without_names,
    _text_times,
    _damaged_page,
    _bomb,
    _linked,
    _cut_sqlite,
    _foreign_sqlite,
]


def test_500_sources_of_which_20_are_broken_in_ten_ways(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "night"
    for number in range(500):
        small_source(root / f"rank-{number:03d}", number)
    for number, way in enumerate(WAYS * 2):
        way(root / f"rank-{25 * number:03d}")
    jobs = Jobs(spark, tmp_path / "warehouse")
    overrides = ["ingest.max_bad_fraction=0.04"]
    summary = jobs.ingest("night", root, overrides=overrides)
    assert (summary["n_sources"], summary["n_sources_quarantined"], summary["n_ranks"]) == (500, 20, 480)
    assert summary["n_launches"] == 480 * LAUNCHES_PER_SOURCE
    ledger = jobs.table("trace_files", run_id="night")
    assert ledger["status"].value_counts().to_dict() == {"ingested": 480, "quarantined": 20}
    assert ledger.loc[ledger["status"] == "quarantined", "reason"].nunique() == len(WAYS)
    good = ledger[ledger["status"] == "ingested"]
    assert (good["n_kernels_read"] == good["n_kernels_kept"] + good["n_kernels_rejected"]).all()
    assert good["n_kernels_read"].sum() == summary["n_launches"]
    # The rank in the name holds, whatever is missing beside it.
    assert (good["rank"] == good["source_uri"].str[-3:].astype(int)).all()
    run = jobs.table("runs", run_id="night").iloc[0]
    assert sorted(run["ranks_missing"]) == [25 * number for number in range(20)]
    before, started = jobs.versions(), time.monotonic()
    assert jobs.ingest("night", root, overrides=overrides) == summary
    print(f"rerun over 500 sources: {time.monotonic() - started:.1f} s")
    assert jobs.versions() == before


def test_versions_and_formats_mixed_in_one_run_give_the_moments_of_one_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    spec = FleetSpec(ranks=6, layers=1, iterations=2, seed=5)
    rungs = ("oldest", "2.9.1", "3.1.7", "3.13.2", "3.23.3", "3.25.0")
    for number, rung in enumerate(rungs):
        options = WriterOptions(schema_version=rung, is_lazy=number % 2 == 0, has_runtime=False)
        write_fleet(tmp_path / rung, spec, options)
        mine = tmp_path / rung / f"rank-{number:05d}"
        if number % 3 == 1:
            (tmp_path / "mixed").mkdir(exist_ok=True)
            to_sqlite(mine, tmp_path / "mixed" / f"rank-{number:05d}.sqlite")
        else:
            shutil.copytree(mine, tmp_path / "mixed" / mine.name)
    jobs = Jobs(spark, tmp_path / "warehouse")
    jobs.ingest("mixed", tmp_path / "mixed")
    jobs.ingest("one", tmp_path / "3.25.0")
    assert jobs.table("trace_files", run_id="mixed")["schema_version"].nunique(dropna=False) == 6
    for run_id in ("mixed", "one"):
        jobs.moments(run_id)
    for table, key in (("kernel_moments", ["kernel_id"]), ("rank_moments", ["rank", "kernel_id"])):
        mixed, one = (
            jobs.table(table, run_id=run_id)
            .drop(columns=["run_id", "fingerprint", "fingerprint_inputs"], errors="ignore")
            .sort_values(key, ignore_index=True)
            for run_id in ("mixed", "one")
        )
        assert len(one) > 20
        assert mixed.equals(one), table


def test_a_renamed_copy_is_not_ingested_twice_and_a_changed_file_replaces_its_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "night"
    small_source(root / "a", 1)
    small_source(root / "b", 2)
    shutil.copytree(root / "a", root / "c")
    jobs = Jobs(spark, tmp_path / "warehouse")
    summary = jobs.ingest("night", root)
    assert summary["n_launches"] == 2 * LAUNCHES_PER_SOURCE
    ledger = jobs.table("trace_files", run_id="night").set_index("source_uri")
    assert ledger.loc["c", ["status", "reason"]].tolist() == ["duplicate", "same content as a"]
    before = jobs.table("kernel_launches", run_id="night").groupby("rank")["duration_ns"].sum()

    shutil.rmtree(root / "b")
    small_source(root / "b", 3)
    with pytest.raises(FingerprintMismatchError):
        jobs.ingest("night", root)
    jobs.ingest("night", root, replace=True)
    after = jobs.table("kernel_launches", run_id="night").groupby("rank")["duration_ns"].sum()
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert len(jobs.table("trace_files", run_id="night")) == 3


def test_launches_of_whole_graphs_are_launches_of_a_pseudo_kernel(
    spark: SparkSession, tmp_path: Path
) -> None:
    small_source(tmp_path / "night" / "a", 1)
    graphs = {
        "start": [500, 90_000_000],
        "end": [2_500, 90_002_000],
        "graphId": [7, 7],
        "correlationId": [100, 101],
    }
    pq.write_table(pa.table(graphs), tmp_path / "night" / "a" / f"{GRAPH}.parquet")
    shutil.copytree(tmp_path / "night" / "a", tmp_path / "made")
    to_sqlite(tmp_path / "made", tmp_path / "night" / "b.sqlite")
    jobs = Jobs(spark, tmp_path / "warehouse")
    summary = jobs.ingest("night", tmp_path / "night")
    kernels = jobs.table("kernels").set_index("category")
    assert kernels.loc["cuda_graph", "kernel_name"] == "[CUDA graph 7]"
    launches = jobs.table("kernel_launches", run_id="night")
    opaque = launches[launches["kernel_id"] == kernels.loc["cuda_graph", "kernel_id"]]
    assert sorted(opaque["launch_index"]) == sorted([LAUNCHES_PER_SOURCE, LAUNCHES_PER_SOURCE + 1] * 2)
    share = opaque["duration_ns"].sum() / launches["duration_ns"].sum()
    assert summary["opaque_time_share"] == pytest.approx(share)
    run = jobs.table("runs", run_id="night").iloc[0]
    assert "--cuda-graph-trace=node" in run["remark"]
    ledger = jobs.table("trace_files", run_id="night")
    assert ledger["n_graph_launches"].tolist() == [2, 2]
    assert ledger["n_kernels_read"].tolist() == [LAUNCHES_PER_SOURCE + 2] * 2


def test_times_count_from_the_session_whatever_the_export_added(spark: SparkSession, tmp_path: Path) -> None:
    epoch_ns = 1_700_000_000_000_000_000
    exports = {
        "a": (0, {}),
        "b": (epoch_ns, {"EXPORT_PARAM_TIME_NORMALIZE": "true"}),
        "c": (-5_000, {"EXPORT_PARAM_TIME_SHIFT": "-5000", "EXPORT_PARAM_TIME_NORMALIZE": "false"}),
    }
    for name, (added_ns, parameters) in exports.items():
        folder = tmp_path / "night" / name
        # Not the same content: a kernel of its own name.
        small_source(folder, 4, f"kernel_{name}")
        path = folder / f"{KERNEL}.parquet"
        table = pq.read_table(path).to_pydict()
        for column in ("start", "end"):
            table[column] = [value + added_ns for value in table[column]]
        pq.write_table(pa.table(table), path)
        metadata = {"name": list(parameters), "value": list(parameters.values())}
        schema = pa.schema([("name", pa.string()), ("value", pa.string())])
        pq.write_table(pa.table(metadata, schema=schema), folder / "META_DATA_EXPORT.parquet")
        pq.write_table(
            pa.table({"utcEpochNs": [epoch_ns]}), folder / "TARGET_INFO_SESSION_START_TIME.parquet"
        )
    jobs = Jobs(spark, tmp_path / "warehouse")
    jobs.ingest("night", tmp_path / "night")
    launches = jobs.table("kernel_launches", run_id="night").sort_values(["rank", "launch_index"])
    starts = [group["start_ns"].tolist() for _, group in launches.groupby("rank")]
    assert starts[0] == starts[1] == starts[2]
    assert set(jobs.table("trace_files", run_id="night")["session_start_ns"]) == {epoch_ns}


def test_text_traces_mix_with_nsys_exports(spark: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "night"
    small_source(root / "rank-0", 1)
    (root / "rank-1.csv").write_text(
        "Generating SQLite file x.sqlite\n\n"
        "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
        "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
        '100,50,1,1,1,1,32,1,1,8,0.000,0.000,,,,,GPU (0),1,,7,"f<(int)1, (bool)0>(x)"\n'
        "300,60,2,,,,,,,,,,1.0,5.0,Pageable,Device,GPU (0),1,,7,[CUDA memcpy Host-to-Device]\n"
        '500,-1,3,1,1,1,32,1,1,8,0.000,0.000,,,,,GPU (0),1,,7,"<script>\'; DROP TABLE x --"\n',
        "utf-8",
    )
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "ts": 10.5,
        "dur": 2.25,
        "args": {"device": 0, "stream": 7},
    }
    trace = {"schemaVersion": 1, "distributedInfo": {"rank": 2, "world_size": 4}, "traceEvents": [event]}
    (root / "third.json").write_text(json.dumps(trace), "utf-8")
    jobs = Jobs(spark, tmp_path / "warehouse")
    jobs.ingest("night", root)
    ledger = jobs.table("trace_files", run_id="night").set_index("source_uri").sort_index()
    assert ledger["format"].tolist() == ["nsys-parquet", "nsys-csv", "kineto"]
    assert ledger["rank"].tolist() == [0, 1, 2]
    assert ledger["rank_source"].tolist() == ["name", "name", "distributedInfo"]
    assert ledger["n_kernels_read"].tolist() == [LAUNCHES_PER_SOURCE, 2, 1]
    assert ledger["n_kernels_kept"].tolist() == [LAUNCHES_PER_SOURCE, 1, 1]
    assert ledger["n_copies"].tolist() == [0, 1, 0]
    run = jobs.table("runs", run_id="night").iloc[0]
    assert (run["world_size"], list(run["ranks_missing"]), bool(run["is_complete"])) == (4, [3], False)
    launches = jobs.table("kernel_launches", run_id="night")
    assert launches.loc[launches["rank"] == 2, "duration_ns"].tolist() == [2250]
    assert "f<(int)1, (bool)0>(x)" in set(jobs.table("kernels")["kernel_name"])


def test_no_byte_of_warehouse_or_log_holds_a_secret(
    fleet: Fleet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    jobs = Jobs(fleet.jobs.spark, tmp_path / "warehouse")
    jobs.ingest("night", fleet.root, overrides=["ingest.max_bad_fraction=1"])
    jobs.moments("night")
    told = capfd.readouterr()
    assert "write kernel_launches" in told.err
    n_bytes = 0
    for path in (tmp_path / "warehouse").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            if path.suffix == ".parquet":
                # Pages are compressed: search what they hold.
                content += repr(pq.read_table(path).to_pydict()).encode()
            n_bytes += len(content)
            assert not [secret for secret in PLANTED_SECRETS if secret.encode() in content], path.name
    assert n_bytes > 100_000
    assert not [secret for secret in PLANTED_SECRETS if secret in told.err + told.out]


def test_moments_of_a_stats_csv_are_those_of_its_own_summary(
    spark: SparkSession, shared_data: Path, tmp_path: Path
) -> None:
    jobs = Jobs(spark, tmp_path / "warehouse")
    jobs.ingest("bn", shared_data / "nsys_csv" / "bn_cuda_gpu_trace.csv")
    jobs.moments("bn")
    names = jobs.table("kernels").set_index("kernel_id")["kernel_name"]
    found = jobs.table("kernel_moments", run_id="bn")
    found = found.set_index(found["kernel_id"].map(names))
    with (shared_data / "nsys_csv" / "bn_cuda_gpu_kern_sum.csv").open(newline="") as stream:
        summary = {row["Name"]: row for row in csv.DictReader(stream)}
    assert set(found.index) == set(summary)
    for name, row in summary.items():
        one = found.loc[name]
        assert (one["n"], one["total_ns"]) == (int(row["Instances"]), int(row["Total Time (ns)"]))
        assert one["mean_ns"] == pytest.approx(float(row["Avg (ns)"]), abs=0.05)
        if one["n"] > 1:
            sample_stddev = one["stddev_ns"] * (one["n"] / (one["n"] - 1)) ** 0.5
            assert sample_stddev == pytest.approx(float(row["StdDev (ns)"]), abs=0.05)
