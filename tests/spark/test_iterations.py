"""Iterations and phases in kernel_launches, for both nsys formats, with ranges and without."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession
from support import Jobs, to_sqlite

from stemroot_spark.fleet import PHASES, FleetSpec, WriterOptions, launches, write_fleet
from stemroot_spark.iterations import STRETCH

_SPEC = FleetSpec(ranks=1, layers=1, iterations=4, seed=5, evaluation_interval_iterations=3)
_OPTIONS = {
    "ranges": WriterOptions(has_layer_ranges=True, has_autograd_thread=True, hardware_id=200),
    "no_ranges": WriterOptions(has_nvtx=False),
    "no_calls": WriterOptions(has_runtime=False),
}


@pytest.fixture(scope="module")
def found(spark: SparkSession, scratch: Path) -> dict[str, pd.DataFrame]:
    """Launches in order by source, of one run of sources with ranges beside others; all launch the same kernels."""
    root = scratch / "traces"
    root.mkdir()
    for night, (name, options) in enumerate(_OPTIONS.items()):
        write_fleet(scratch / name, replace(_SPEC, night=night), options)
        shutil.move(scratch / name / "rank-00000", root / name)
    to_sqlite(root / "ranges", root / "ranges.sqlite")
    jobs = Jobs(spark, scratch / "warehouse")
    jobs.ingest("night", root)
    table = jobs.table("kernel_launches").sort_values("launch_index")
    return {
        name: table[table["rank"] == rank].reset_index(drop=True)
        for (name, _), rank in jobs.ranks("night").items()
    }


@pytest.mark.parametrize("source", ["ranges", "ranges.sqlite"])
def test_every_launch_has_the_iteration_and_phase_of_the_ranges_around_its_call(
    found: dict[str, pd.DataFrame], source: str
) -> None:
    truth = launches(_SPEC, 0)
    assert found[source]["iteration"].tolist() == truth.iteration.tolist()
    assert found[source]["phase"].tolist() == [PHASES[phase] for phase in truth.phase]


@pytest.mark.parametrize("source", ["no_ranges", "no_calls"])
def test_without_ranges_iterations_are_the_periods_after_the_setup(
    found: dict[str, pd.DataFrame], source: str
) -> None:
    truth = launches(_SPEC, 0)
    is_setup = (truth.phase == PHASES.index("setup")).tolist()
    rows = found[source]
    assert rows["iteration"].isna().tolist() == is_setup
    expected = [None if setup else i for i, setup in zip(truth.iteration.tolist(), is_setup, strict=True)]
    assert [None if pd.isna(i) else int(i) for i in rows["iteration"]] == expected
    assert set(rows["phase"].dropna()) == {STRETCH.format(0)}


def test_a_real_report_has_phases_where_its_ranges_hold(real: Jobs) -> None:
    one, other = (
        real.table("kernel_launches", run_id=run_id).sort_values(["start_ns", "correlation_id"])
        for run_id in ("h100", "mixed")
    )
    is_same = other["kernel_id"].isin(set(one["kernel_id"]))
    assert one["phase"].fillna("").tolist() == other.loc[is_same, "phase"].fillna("").tolist()
    # A window of a forward pass: launches inside hooks of FSDP are known to be forward. No range is an iteration, and
    # where some ranges mean something the repeating layers are not taken for iterations.
    assert one["phase"].value_counts().to_dict() == {"forward": 918}
    assert one["iteration"].isna().all()
    # A solver without ranges: two kernels in turn.
    assert other["iteration"].max() == 4_094
