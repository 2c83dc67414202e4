"""The evaluate job on a generated night: rows, features, another night, reruns, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import write_source
from pyspark.sql import SparkSession
from support import Jobs

from stemroot_spark.config import load_config
from stemroot_spark.errors import DataError, FingerprintMismatchError, UnknownIdError, UsageError
from stemroot_spark.evaluate import Request, evaluate
from stemroot_spark.fleet import WriterOptions
from stemroot_spark.repetitions import noise_between_iterations

_QUICK = ("evaluate.draws=400",)


@pytest.fixture(scope="module")
def nights(spark: SparkSession, scratch: Path) -> Jobs:
    """Run ``night`` of two ranks, and run ``later`` of the first of them."""
    jobs = Jobs(spark, scratch / "warehouse")
    for run_id, ranks in (("night", 2), ("later", 1)):
        root = scratch / run_id
        root.mkdir()
        for rank in range(ranks):
            write_source(scratch, root / f"{rank} {run_id}", WriterOptions(), night=rank + 10 * ranks)
        jobs.ingest(run_id, root)
    return jobs


def _evaluate(
    nights: Jobs, evaluation_id: str, *, overrides: Sequence[str] = _QUICK, **fields: Any
) -> dict[str, Any]:
    request = Request(**{"run_id": "night", "evaluation_id": evaluation_id, **fields})
    return evaluate(nights.warehouse(), request, config=load_config(overrides=overrides))


def _planned(nights: Jobs) -> pd.DataFrame:
    """Launches without communication, in order, with the blocks and threads of their configuration."""
    launches = nights.table("kernel_launches", run_id="night")
    kernels = nights.table("kernels")
    waiting = kernels[kernels["is_communication"]]["kernel_id"]
    shapes = nights.table("launch_configs").set_index("launch_config_id")
    shapes = shapes.assign(
        blocks=shapes["grid_x"] * shapes["grid_y"] * shapes["grid_z"],
        threads=shapes["block_x"] * shapes["block_y"] * shapes["block_z"],
    )[["blocks", "threads"]]
    kept = launches[~launches["kernel_id"].isin(waiting)]
    return kept.join(shapes, on="launch_config_id").sort_values(["rank", "launch_index"])


def test_methods_are_scored_and_those_without_features_say_so(nights: Jobs, scratch: Path) -> None:
    summary = _evaluate(nights, "first", protocols=("P0", "P2:configuration:0.5"))
    rows = nights.table("evaluations", evaluation_id="first")
    launches = _planned(nights)
    assert set(rows["n_launches"]) == {len(launches)} == {summary["n_launches"]}
    assert len(rows) == len(summary["results"]) == 2 * 18
    is_transfer = (rows["method"] == "optimal") & (rows["guarantee"] == "transfer")
    transfer = rows[is_transfer & (rows["protocol"] == "P2")].iloc[0]
    assert transfer["status"] == "ok"
    assert transfer["within_epsilon"] > 0.9
    assert abs(transfer["bias"]) < 5 * transfer["bias_se"]
    means = launches.groupby("kernel_id")["duration_ns"].agg(["sum", "mean"])
    assert transfer["floor_speedup"] == pytest.approx(means["sum"].sum() / means["mean"].sum())
    # What a plan would measure. Generated with 0.03, on four iterations of which three warm up.
    assert set(rows["launch_noise_source"]) == {"iterations"}
    measured = noise_between_iterations(nights.spark.createDataFrame(launches.astype({"iteration": "int32"})))
    assert rows["launch_noise"].unique() == pytest.approx([measured])
    assert measured is not None
    assert 0.01 < measured < 0.06
    lacking = rows[rows["method"].isin(["pka", "sieve", "photon", "simpoint", "two-profiles"])]
    assert (lacking["status"] == "cannot_run").all()
    assert lacking["reason"].str.startswith("cannot run: needs ").all()
    assert lacking["speedup"].isna().all()

    # Features of every rank, one file each: Sieve runs, PKA still lacks its metrics.
    files = []
    for rank, part in launches.groupby("rank"):
        path = scratch / f"vectors {rank}.csv"
        lines = [
            f"{row.launch_index},k{row.kernel_id},{row.blocks * row.threads}" for row in part.itertuples()
        ]
        path.write_text("\n".join(["launch_index,block,instructions", *lines]) + "\n", "utf-8")
        files.append(f"{rank}={path}")
    with pytest.raises(FingerprintMismatchError, match="features was"):
        _evaluate(nights, "first", protocols=("P0", "P2:configuration:0.5"), features=files)
    _evaluate(
        nights, "second", methods=("simpoint", "photon", "pka"), protocols=("P2:kernel:0.5",), features=files
    )
    features = nights.table("kernel_features", run_id="night")
    assert len(features) == len(launches)
    assert set(features["feature_kind"]) == {"vectors"}
    assert features["value"].sum() == (launches["blocks"] * launches["threads"]).sum()
    status = nights.table("evaluations", evaluation_id="second").set_index("method")["status"]
    assert status.to_dict() == {"simpoint": "ok", "photon": "ok", "pka": "cannot_run"}

    # The same request again writes nothing.
    before = nights.versions()
    again = _evaluate(
        nights, "second", methods=("simpoint", "photon", "pka"), protocols=("P2:kernel:0.5",), features=files
    )
    assert nights.versions() == before
    assert (
        again["results"]
        == _evaluate(nights, "second", methods=("simpoint", "photon", "pka"), protocols=("P2:kernel:0.5",))[
            "results"
        ]
    )


def test_another_night_is_scored_against_with_what_it_lacks_left_out(nights: Jobs) -> None:
    summary = _evaluate(nights, "held-out", against_run_id="later", methods=("stem-root", "first-launch"))
    rows = nights.table("evaluations", evaluation_id="held-out")
    assert {row["protocol"] for row in summary["results"]} == {"P0", "P1"}
    mine = _planned(nights)
    theirs = nights.table("kernel_launches", run_id="later")
    keys = ["rank", "kernel_id", "kernel_invocation"]
    both = mine.merge(theirs[[*keys, "duration_ns"]], on=keys, suffixes=("", "_y"))
    assert set(rows["n_launches"]) == {len(both)}
    assert set(rows["n_unmatched"]) == {len(mine) - len(both)}
    first = both.sort_values(["rank", "launch_index"]).groupby("kernel_id")
    expected = (first["duration_ns_y"].first() * first.size()).sum() / both["duration_ns_y"].sum() - 1
    found = rows[(rows["method"] == "first-launch") & (rows["protocol"] == "P1")].iloc[0]
    assert found["bias"] == pytest.approx(expected, rel=1e-9)
    assert np.isnan(found["interval_coverage"])

    _evaluate(
        nights,
        "repeated",
        repeat_run_id="later",
        methods=("two-profiles",),
        protocols=("P0", "P2:kernel:0.5"),
    )
    repeated = nights.table("evaluations", evaluation_id="repeated")
    assert set(repeated["repeat_run_id"]) == {"later"}
    assert (repeated[repeated["protocol"] == "P0"]["status"] == "cannot_run").all()
    modelled = repeated[repeated["protocol"] == "P2"]
    assert set(modelled["guarantee"]) == {"transfer", "total", "per-kernel", "worst-case"}
    assert (modelled["interval_coverage"] > 0.9).all()
    assert set(modelled["launch_noise_source"]) == {"second profile"}
    assert (modelled["bias"].abs() < 5 * modelled["bias_se"]).all()

    together = _evaluate(
        nights,
        "held-out",
        against_run_id="later",
        methods=("stem-root", "first-launch"),
        suite_with=("held-out",),
    )
    suite = {(row["method"], row["protocol"]): row for row in together["suite"]}
    assert suite["stem-root", "P1"]["n_runs"] == 2
    assert suite["first-launch", "P0"]["n_cannot_run"] == 2


def test_what_cannot_be_evaluated_is_refused_and_nothing_is_written(nights: Jobs, scratch: Path) -> None:
    wrong = scratch / "other.csv"
    wrong.write_text(
        "kernel id, kernel mangled name, grid_dimX, grid_dimY, grid_dimZ, #blocks, block_dimX, block_dimY, "
        "block_dimZ, #threads, total_insts, total_reported_insts\n"
        + "".join(f"kernel-{i}.trace, f, 7, 1, 1, 99991, 7, 1, 1, 7, 5,5\n" for i in range(1, 200)),
        "utf-8",
    )
    before = nights.versions()
    with pytest.raises(UsageError, match="holds at most 10 on the driver"):
        _evaluate(nights, "x", overrides=("evaluate.max_launches=10",))
    with pytest.raises(UnknownIdError, match="nights"):
        _evaluate(nights, "x", run_id="nights")
    with pytest.raises(UsageError, match="against-run-id"):
        _evaluate(nights, "x", protocols=("P1",))
    for other in ("night", "later"):
        with pytest.raises(UsageError, match="give a third run"):
            _evaluate(nights, "x", repeat_run_id=other, against_run_id="later")
    with pytest.raises(UsageError, match="no such file"):
        _evaluate(nights, "x", features=(str(scratch / "nowhere.csv"),))
    with pytest.raises(DataError, match="another shape than in the run"):
        _evaluate(nights, "x", features=(str(wrong),))
    assert nights.versions() == before
