"""Ingest against the sources themselves, read without Spark: real traces, and generated ones under awkward names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import xxhash
from conftest import BAD_ROWS, NONE_32, Fleet
from support import CONFIG, Jobs, numbered, texts_of, trace_rows

from stemroot_spark.errors import SourceError, UnknownIdError, UsageError
from stemroot_spark.fleet import PLANTED_SECRETS

_IDENTITY = [
    "launch_index",
    "kernel_invocation",
    "kernel_name",
    "start_ns",
    "duration_ns",
    "device_id",
    "context_id",
    "stream_id",
    "correlation_id",
    "graph_node_id",
    *CONFIG.values(),
]


def _expected(rows: pd.DataFrame) -> pd.DataFrame:
    """Launches of one process by the columns of ``_IDENTITY``, straight from its rows; rejects are left to callers."""
    ordered = numbered(rows)
    renamed = ordered.rename(
        columns={
            "start": "start_ns",
            "deviceId": "device_id",
            "contextId": "context_id",
            "streamId": "stream_id",
            "correlationId": "correlation_id",
            "graphNodeId": "graph_node_id",
            **CONFIG,
        }
    )
    for column in _IDENTITY:
        if column not in renamed:
            renamed[column] = None
    renamed["device_id"] = [None if value == NONE_32 else value for value in renamed["device_id"]]
    return renamed


def _found(jobs: Jobs, run_id: str, rank: int) -> pd.DataFrame:
    """The same columns from the tables, names and configurations joined by their ids."""
    launches = jobs.table("kernel_launches", run_id=run_id)
    launches = launches[launches["rank"] == rank].sort_values("launch_index")
    names = jobs.table("kernels").set_index("kernel_id")["kernel_name"]
    configs = jobs.table("launch_configs").set_index("launch_config_id")
    joined = launches.assign(kernel_name=launches["kernel_id"].map(names)).join(
        configs, on="launch_config_id"
    )
    return joined.reset_index(drop=True)


def _same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert len(found) == len(expected)
    for column in _IDENTITY:
        pairs = zip(found[column], expected[column], strict=True)
        wrong = [
            (i, a, b)
            for i, (a, b) in enumerate(pairs)
            if not (pd.isna(a) and pd.isna(b)) and (pd.isna(a) or pd.isna(b) or a != b)
        ]
        assert not wrong, (column, wrong[:3])


# Real traces.


def test_two_processes_of_one_report_are_two_ranks_with_their_launches_in_order(
    real: Jobs, shared_data: Path
) -> None:
    rows = trace_rows(shared_data / "nsys_parquetdir" / "h100_2rank_llm_2026.2")
    assert (len(rows), rows["globalPid"].nunique()) == (4_010, 2)
    ranks = real.ranks("h100")
    assert sorted(ranks.values()) == [0, 1]
    for (_, process), rank in ranks.items():
        _same(_found(real, "h100", rank), _expected(rows[rows["globalPid"] == process]))


def test_the_header_of_a_real_run_tells_what_is_in_it(real: Jobs) -> None:
    run = real.table("runs", run_id="h100").iloc[0]
    assert (run["n_launches"], run["ranks_present"], run["world_size"]) == (4_010, 2, 2)
    assert (run["n_kernels"], run["n_communication_kernels"]) == (27, 1)
    assert (run["n_sources"], run["n_sources_quarantined"], run["workload"]) == (1, 0, "llm")
    assert run["is_complete"]
    assert run["gpu_name"] is None


def test_sqlite_and_parquet_exports_of_a_report_give_the_same_rows(real: Jobs) -> None:
    # The kernels of the other sources of this run are their own, so all rows of these can be compared.
    ids = set(real.table("kernel_launches", run_id="h100")["kernel_id"])
    left_out = ["run_id", "rank", "fingerprint", "fingerprint_inputs", "time_share"]

    def comparable(table: str, run_id: str, order: list[str]) -> pd.DataFrame:
        rows = real.table(table, run_id=run_id)
        rows = rows[rows["kernel_id"].isin(ids)]
        if "rank" in rows:
            process_of = {rank: process for (_, process), rank in real.ranks(run_id).items()}
            rows = rows.assign(process=rows["rank"].map(process_of))
        return rows.drop(columns=left_out, errors="ignore").sort_values(order, ignore_index=True)

    for table, order in {
        "kernel_launches": ["process", "launch_index"],
        "duration_histograms": ["kernel_id", "launch_config_id", "bucket"],
        "rank_moments": ["process", "kernel_id"],
        "kernel_moments": ["kernel_id"],
    }.items():
        one, other = (comparable(table, run_id, order) for run_id in ("h100", "mixed"))
        assert len(one) >= 27
        pd.testing.assert_frame_equal(one, other, check_exact=True)


def test_dictionaries_hold_each_kernel_and_configuration_once(real: Jobs) -> None:
    kernels = real.table("kernels")
    assert len(kernels) == kernels["kernel_name"].nunique() == kernels["kernel_id"].nunique()
    for row in kernels.itertuples():
        digest = xxhash.xxh64_intdigest(row.kernel_name.encode(), seed=42)
        assert row.kernel_id == digest - 2**64 * (digest >= 2**63)
    configs = real.table("launch_configs")
    assert not configs["launch_config_id"].duplicated().any()
    assert not configs[list(CONFIG.values())].duplicated().any()
    used = real.table("kernel_launches")
    assert set(used["launch_config_id"]) == set(configs["launch_config_id"])
    assert set(used["kernel_id"]) == set(kernels["kernel_id"])


@pytest.mark.parametrize(
    ("source", "launches"), [("rodinia_gaussian_2022.4", 8_190), ("saxpy_mpi_2022.2_nonlazy", None)]
)
def test_older_exports_are_read_in_full(
    source: str, launches: int | None, real: Jobs, shared_data: Path
) -> None:
    rows = trace_rows(shared_data / "nsys_parquetdir" / source)
    assert launches in (len(rows), None)
    assert len(rows) > 0
    ranks = {process: rank for (name, process), rank in real.ranks("mixed").items() if name == source}
    assert set(ranks) == {int(process) for process in rows["globalPid"]}
    for process, rank in ranks.items():
        mine = rows[[int(key) == process for key in rows["globalPid"]]]
        _same(_found(real, "mixed", rank), _expected(mine))


def test_processes_of_nameless_ranks_take_them_in_order(real: Jobs) -> None:
    ranks = real.ranks("h100")
    assert [ranks[key] for key in sorted(ranks)] == [0, 1]
    everyone = real.ranks("mixed")
    assert sorted(everyone.values()) == list(range(len(everyone)))


# Generated traces: six good sources, two bad ones.


def _rank_of(fleet: Fleet, name: str) -> int:
    (rank,) = [rank for (source, _), rank in fleet.jobs.ranks("night").items() if source == name]
    return rank


@pytest.mark.parametrize("position", range(6))
def test_every_launch_of_a_generated_source_is_there_under_its_number(fleet: Fleet, position: int) -> None:
    name = list(fleet.good)[position]
    expected = _expected(trace_rows(fleet.root / name))
    if name == "05-bad-rows":
        # Numbers count rejected rows too; the rejected rows are known by their place in the file.
        rows = trace_rows(fleet.root / name).reset_index(names="row")
        rejected = {int(row) for row in numbered(rows).query("row in @BAD_ROWS")["launch_index"]}
        assert len(rejected) == len(BAD_ROWS)
        expected = expected[~expected["launch_index"].isin(rejected)].reset_index(drop=True)
    _same(_found(fleet.jobs, "night", _rank_of(fleet, name)), expected)


def test_launches_and_times_are_those_of_the_truth(fleet: Fleet) -> None:
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    names = fleet.jobs.table("kernels").set_index("kernel_id")
    for name, truth in fleet.good.items():
        if name == "05-bad-rows":
            continue
        mine = launches[launches["rank"] == _rank_of(fleet, name)]
        assert (len(mine), mine["duration_ns"].sum()) == (truth["launches"], truth["total_ns"])
        by_kernel = mine.groupby("kernel_id")["duration_ns"].agg(["size", "sum"]).join(names)
        expected = {k["kernel_name"]: k for k in truth["kernels"]}
        assert set(by_kernel["kernel_name"]) == set(expected)
        for row in by_kernel.itertuples():
            one = expected[row.kernel_name]
            assert (row.size, row.sum) == (one["launches"], one["total_ns"])
            assert row.is_communication == one["is_communication"]


def test_rejected_rows_are_counted_by_reason(fleet: Fleet) -> None:
    ledger = fleet.jobs.table("trace_files", run_id="night").set_index("source_uri")
    reasons = list(BAD_ROWS.values())
    bad = ledger.loc["05-bad-rows"]
    assert json.loads(bad["rejected_by_reason"]) == {reason: reasons.count(reason) for reason in set(reasons)}
    launches = fleet.good["05-bad-rows"]["launches"]
    assert bad["n_kernels_read"] == launches
    assert (bad["n_kernels_kept"], bad["n_kernels_rejected"]) == (launches - 6, 6)
    others = ledger.drop(index=["05-bad-rows", *fleet.bad])
    assert (others["n_kernels_rejected"] == 0).all()
    assert set(others["rejected_by_reason"]) == {"{}"}


def test_bad_sources_are_quarantined_beside_good_ones(fleet: Fleet) -> None:
    ledger = fleet.jobs.table("trace_files", run_id="night").set_index("source_uri")
    assert sorted(ledger.index) == sorted([*fleet.good, *fleet.bad])
    assert (ledger.loc[list(fleet.good), "status"] == "ingested").all()
    bad = ledger.loc[list(fleet.bad)]
    assert (bad["status"] == "quarantined").all()
    assert bad["reason"].str.contains("cut").all()
    assert bad[["rank", "process_key", "n_kernels_read"]].isna().all(axis=None)
    assert "2 of 8 sources are quarantined, more than --max-bad-fraction 0" in fleet.error
    run = fleet.jobs.table("runs", run_id="night").iloc[0]
    assert not run["is_complete"]
    assert re.search(r"\b2\b.* sources quarantined", run["incomplete_reason"])
    assert (run["n_sources"], run["n_sources_quarantined"]) == (8, 2)


def test_a_larger_bad_fraction_accepts_the_run_as_it_was_ingested(fleet: Fleet) -> None:
    before = fleet.jobs.versions()
    summary = fleet.jobs.ingest("night", fleet.root, overrides=["ingest.max_bad_fraction=0.25"])
    assert (summary["n_sources"], summary["n_sources_quarantined"], summary["n_ranks"]) == (8, 2, 6)
    assert fleet.jobs.versions() == before


def test_process_ids_above_2_to_the_63_stay_unsigned(fleet: Fleet) -> None:
    ledger = fleet.jobs.table("trace_files", run_id="night").set_index("source_uri")
    for name, hardware_id in {"02 ünï {x,y}": 200, "03 a?b*c.sqlite": 255}.items():
        key = int(ledger.loc[name, "process_key"])
        assert key >> 56 == hardware_id
        assert {key} == {int(pid) % 2**64 for pid in trace_rows(fleet.root / name)["globalPid"]}


def test_versions_and_formats_stand_in_the_ledger(fleet: Fleet) -> None:
    ledger = fleet.jobs.table("trace_files", run_id="night").set_index("source_uri")
    versions = ledger.loc[list(fleet.good), "schema_version"]
    assert versions.tolist() == ["3.25.0", None, "2.9.1", "3.13.2", "3.1.7", "3.25.0"]
    formats = ledger.loc[list(fleet.good), "format"]
    assert formats.tolist() == ["nsys-parquet"] * 3 + ["nsys-sqlite"] + ["nsys-parquet"] * 2


def test_no_secret_of_a_trace_enters_a_table(fleet: Fleet) -> None:
    everything = texts_of(fleet.jobs.table(name) for name in fleet.jobs.versions())
    assert len(everything) > 100_000
    assert [secret for secret in PLANTED_SECRETS if secret in everything] == []


def test_the_order_of_the_sources_does_not_matter(fleet: Fleet) -> None:
    before = fleet.jobs.versions()
    sources = sorted((path for path in fleet.root.iterdir() if path.suffix != ".txt"), reverse=True)
    fleet.jobs.ingest("night", *sources, sources[2], overrides=["ingest.max_bad_fraction=1"])
    assert fleet.jobs.versions() == before


def test_a_rank_can_be_given_to_one_process_only(fleet: Fleet) -> None:
    jobs = fleet.jobs
    with pytest.raises(UsageError, match="--rank 5 names one process, but the sources hold 2"):
        jobs.ingest("two", fleet.root / "00 plain [1]", fleet.root / "02 ünï {x,y}", rank=5)
    assert jobs.table("runs", run_id="two").empty
    assert jobs.table("trace_files", run_id="two").empty
    summary = jobs.ingest("one", fleet.root / "02 ünï {x,y}", rank=5)
    assert summary["n_launches"] == fleet.good["02 ünï {x,y}"]["launches"]
    assert set(jobs.table("kernel_launches", run_id="one")["rank"]) == {5}
    assert jobs.table("trace_files", run_id="one")["rank_source"].tolist() == ["option"]
    run = jobs.table("runs", run_id="one").iloc[0]
    assert run["ranks_present"] == 1
    # A run without moments cannot be planned.
    with pytest.raises(UnknownIdError, match=r"moments of run one .* run the moments job first"):
        jobs.plan("one", "plan-one")
    assert jobs.table("plans", plan_id="plan-one").empty


def test_without_a_good_source_only_the_ledger_is_written(fleet: Fleet) -> None:
    before = fleet.jobs.versions()
    with pytest.raises(SourceError, match=r"none of the 2 sources.*06-cut: .* is cut.*07-cut\.sqlite"):
        fleet.jobs.ingest("none", *(fleet.root / name for name in fleet.bad))
    assert fleet.jobs.table("trace_files", run_id="none")["status"].tolist() == ["quarantined"] * 2
    assert fleet.jobs.versions() == before | {"trace_files": before["trace_files"] + 1}
