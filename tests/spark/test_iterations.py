"""Iterations and phases in kernel_launches, for both nsys formats, with ranges and without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession
from support import Jobs, to_sqlite

from stemroot_spark.fleet import PHASES, FleetSpec, WriterOptions, launches, write_fleet
from stemroot_spark.iterations import STRETCH

_SPEC = FleetSpec(ranks=2, layers=1, iterations=4, seed=5, evaluation_interval_iterations=3)


@pytest.fixture(scope="module")
def found(spark: SparkSession, scratch: Path) -> dict[str, pd.DataFrame]:
    """Launches of rank 0 in order, of the same fleet as it was written in several ways."""
    options = {
        "ranges": WriterOptions(has_layer_ranges=True, has_autograd_thread=True, hardware_id=200),
        "no_ranges": WriterOptions(has_nvtx=False),
        "no_calls": WriterOptions(has_runtime=False),
    }
    jobs = Jobs(spark, scratch / "warehouse")
    for name, option in options.items():
        write_fleet(scratch / name, _SPEC, option)
        jobs.ingest(name, scratch / name)
    sqlite = scratch / "rank0.sqlite"
    to_sqlite(scratch / "ranges" / "rank-00000", sqlite)
    # One run of both formats, and of processes with ranges beside others.
    jobs.ingest("mixed", sqlite, scratch / "no_ranges" / "rank-00001")
    table = jobs.table("kernel_launches")
    return {
        str(run_id): rows[rows["rank"] == rank].sort_values("launch_index", ignore_index=True)
        for rank in (0, 1)
        for run_id, rows in table.groupby("run_id")
        if rank == 0 or run_id == "mixed"
    } | {"mixed_0": table[(table["run_id"] == "mixed") & (table["rank"] == 0)].sort_values("launch_index")}


def _truth() -> tuple[list[int], list[str]]:
    truth = launches(_SPEC, 0)
    return truth.iteration.tolist(), [PHASES[phase] for phase in truth.phase]


@pytest.mark.parametrize("run_id", ["ranges", "mixed_0"])
def test_every_launch_has_the_iteration_and_phase_of_the_ranges_around_its_call(
    found: dict[str, pd.DataFrame], run_id: str
) -> None:
    iterations, phases = _truth()
    assert found[run_id]["iteration"].tolist() == iterations
    assert found[run_id]["phase"].tolist() == phases


@pytest.mark.parametrize("run_id", ["no_ranges", "no_calls", "mixed"])
def test_without_ranges_iterations_are_the_periods_after_the_setup(
    found: dict[str, pd.DataFrame], run_id: str
) -> None:
    iterations, _ = _truth()
    setup = PHASES.index("setup")
    n_prologue = int(np.sum(launches(_SPEC, 0).phase == setup))
    rows = found[run_id]
    assert rows["iteration"].isna().tolist() == [i < n_prologue for i in range(len(rows))]
    assert rows["iteration"][n_prologue:].tolist() == iterations[n_prologue:]
    assert set(rows["phase"][n_prologue:]) == {STRETCH.format(0)}


def test_a_real_report_has_phases_where_its_ranges_hold(real: Jobs) -> None:
    one, other = (
        real.table("kernel_launches", run_id=run_id).sort_values(["start_ns", "correlation_id"])
        for run_id in ("h100", "mixed")
    )
    other = other[other["kernel_id"].isin(set(one["kernel_id"]))]
    assert one["phase"].fillna("").tolist() == other["phase"].fillna("").tolist()
    assert set(one["phase"].dropna()) == {"forward"}
    # A window of a forward pass: no range is an iteration, and layers are not taken for any.
    assert one["iteration"].isna().all()
    solver = real.table("kernel_launches", run_id="mixed")
    assert solver["iteration"].max() == 4_094
