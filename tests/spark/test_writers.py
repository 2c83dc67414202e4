"""Several writers of one table: at the same time, one after the other, and after one that was stopped."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.sql import DataFrame, SparkSession
from support import IO, Jobs, open_warehouse, rank_rows

from stemroot_spark.config import IoConfig
from stemroot_spark.errors import (
    ConcurrentWriteError,
)
from stemroot_spark.fingerprint import Fingerprint
from stemroot_spark.tables import JobWrites, Location, Warehouse


def _writes(warehouse: Warehouse, run_id: str, **inputs: Any) -> JobWrites:
    return JobWrites(
        warehouse,
        job="test",
        header="kernel_moments",
        key={"run_id": run_id},
        fingerprint=Fingerprint(inputs),
    )


def _header(spark: SparkSession, run_id: str) -> DataFrame:
    """Rows of kernel_moments, the header of the job in these tests."""
    names = ("n", "total_ns", "mean_ns", "stddev_ns", "cov", "min_ns", "max_ns", "time_share")
    shape = ("skewness", "excess_kurtosis", "first_window_ratio", "autocorrelation", "last_iteration")
    return spark.range(1).selectExpr(
        f"'{run_id}' AS run_id", "7 AS kernel_id", *(f"1 AS {n}" for n in names + shape)
    )


def test_leftovers_of_a_stopped_job_are_replaced(spark: SparkSession, scratch: Path) -> None:
    warehouse = open_warehouse(spark, scratch / "leftovers")
    stopped = _writes(warehouse, "r", epsilon=1)
    assert not stopped.is_done(replace=False)
    stopped.replace("rank_moments", rank_rows(spark, "r", 5))
    # Never finished: another fingerprint may take its place without --replace.
    second = _writes(warehouse, "r", epsilon=2)
    assert not second.is_done(replace=False)
    second.replace("rank_moments", rank_rows(spark, "r", 3))
    second.finish(_header(spark, "r"))
    assert len(Jobs(spark, scratch / "leftovers").table("rank_moments", run_id="r")) == 3
    assert _writes(warehouse, "r", epsilon=2).is_done(replace=False)


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
        writes = _writes(open_warehouse(session, root), run_id)
        assert not writes.is_done(replace=False)
        shared = session.range(3).selectExpr(
            "id AS kernel_id",
            "'k' AS kernel_name",
            "'k' AS short_name",
            "'other' AS category",
            "false AS is_communication",
        )
        writes.insert_new("kernels", shared, "kernel_id")
        assert writes.replace("rank_moments", rank_rows(session, run_id, 4)).rows == 4
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
    first, second = (_writes(open_warehouse(spark, root), "r", writer=1) for _ in range(2))
    assert not first.is_done(replace=False)
    assert not second.is_done(replace=False)
    first.replace("rank_moments", rank_rows(spark, "r", 2))
    second.replace("rank_moments", rank_rows(spark, "r", 3))
    with pytest.raises(ConcurrentWriteError, match="another writer replaced run_id r while"):
        first.finish(_header(spark, "r"))
    second.finish(_header(spark, "r"))
    third = _writes(open_warehouse(spark, root), "r", writer=1)
    assert third.is_done(replace=False)
    with pytest.raises(ConcurrentWriteError, match="another writer completed run_id r"):
        first.replace("rank_moments", rank_rows(spark, "r", 2))
    jobs = Jobs(spark, root)
    assert len(jobs.table("rank_moments")) == 3
    assert len(jobs.table("kernel_moments")) == 1


class _Interrupted(Warehouse):
    """Lets another writer act between the check that an id is free and the commit to a table."""

    def __init__(self, spark: SparkSession, path: Path, table: str, action: Callable[[], object]) -> None:
        super().__init__(spark, Location(warehouse=str(path)), IO)
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
    winner = _writes(open_warehouse(spark, root), "r", rows=2)
    winner.is_done(replace=False)
    winner.replace("rank_moments", rank_rows(spark, "r", 2))
    warehouse = _Interrupted(spark, root, "rank_moments", lambda: winner.finish(_header(spark, "r")))
    late = _writes(warehouse, "r", rows=late_rows)
    assert not late.is_done(replace=False)
    message = "its rows stand" if has_same_options else "counts as incomplete now; rerun"
    with pytest.raises(ConcurrentWriteError, match=message):
        late.replace("rank_moments", rank_rows(spark, "r", late_rows))
    jobs = Jobs(spark, root)
    _complete(jobs, "r")
    assert len(jobs.table("kernel_moments")) == int(has_same_options)


def test_a_header_that_comes_after_the_rows_of_another_writer_does_not_stay(
    spark: SparkSession, scratch: Path
) -> None:
    root = scratch / "late-header"
    other = _writes(open_warehouse(spark, root), "r", rows=3)
    other.is_done(replace=False)
    warehouse = _Interrupted(
        spark, root, "kernel_moments", lambda: other.replace("rank_moments", rank_rows(spark, "r", 3))
    )
    late = _writes(warehouse, "r", rows=2)
    assert not late.is_done(replace=False)
    late.replace("rank_moments", rank_rows(spark, "r", 2))
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
        writes = _writes(open_warehouse(session, root), "r", rows=n_rows)
        writes.is_done(replace=False)
        writes.replace("rank_moments", rank_rows(session, "r", n_rows))
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
    warehouse = open_warehouse(spark, scratch / "endless", io)
    attempts = []

    def always_late() -> None:
        attempts.append(1)
        raise conflict("another commit")

    with pytest.raises(ConcurrentWriteError, match=r"runs.* other writers were first 3 times"):
        warehouse._retry("runs", always_late, None)
    assert len(attempts) == 3
