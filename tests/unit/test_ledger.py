"""The ledger and the run's header from probes and counts, without Spark."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from stemroot_spark.errors import SourceError, UsageError
from stemroot_spark.ledger import check_all_read, is_windowed, ledger_rows, run_row, with_ranks
from stemroot_spark.probing import ProbedSources, mark_duplicates
from stemroot_spark.sources.discover import Source
from stemroot_spark.sources.probe import Probe


def sources(**probes: Probe) -> ProbedSources:
    found = [Source(name, f"/{name}", is_folder=True) for name in probes]
    return ProbedSources(mark_duplicates(found, list(probes.values())))


def good(content: str, n_rows: int = 10, **fields: Any) -> Probe:
    return Probe(format="nsys-parquet", content_id=content, n_rows=n_rows, **fields)


def counts(*rows: tuple[int, int, int, int]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["source_index", "process_key", "n_kernels_read", "n_kernels_kept"])
    return frame.assign(
        n_kernels_rejected=frame["n_kernels_read"] - frame["n_kernels_kept"],
        rejected_by_reason="{}",
        n_graph_launches=0,
        first_launch_id=150,
        kept_ns=1000,
        opaque_ns=0,
    )


def test_the_same_content_under_another_name_is_read_once() -> None:
    probed = sources(a=good("x"), b=good("y"), c=good("x"), d=Probe(reason="cut", content_id="x"))
    assert [entry.status for entry in probed.entries] == ["ingested", "ingested", "duplicate", "quarantined"]
    processes = with_ranks(counts((0, 1, 10, 9), (1, 1, 10, 10)), probed, None)
    rows = ledger_rows("night", probed, processes)
    assert [(row["source_uri"], row["status"], row["reason"]) for row in rows] == [
        ("a", "ingested", None),
        ("b", "ingested", None),
        ("c", "duplicate", "same content as a"),
        ("d", "quarantined", "cut"),
    ]
    assert rows[0]["n_kernels_rejected"] == 1
    assert "n_kernels_read" not in rows[2]


@pytest.mark.parametrize(
    ("n_bad", "fraction", "exceeds"), [(29, 0.29, False), (30, 0.29, True), (1, 0.0, True)]
)
def test_the_bad_fraction_is_compared_exactly(n_bad: int, fraction: float, exceeds: bool) -> None:
    probes = {f"s{i}": Probe(reason="cut") if i < n_bad else good(str(i)) for i in range(100)}
    assert sources(**probes).exceeds(fraction) is exceeds


def test_a_source_of_which_rows_are_missing_is_an_error() -> None:
    probed = sources(a=good("x"), b=good("y"))
    check_all_read(counts((0, 1, 4, 4), (0, 2, 6, 6), (1, 1, 10, 10)), probed.good)
    with pytest.raises(SourceError, match="b: 10 kernel rows in it, 0 read"):
        check_all_read(counts((0, 1, 10, 10)), probed.good)


def test_a_given_rank_needs_one_process() -> None:
    probed = sources(a=good("x"))
    one = with_ranks(counts((0, 1, 10, 10)), probed, 5)
    assert one[["rank", "rank_source"]].to_numpy().tolist() == [[5, "option"]]
    with pytest.raises(UsageError, match="the sources hold 2"):
        with_ranks(counts((0, 1, 5, 5), (0, 2, 5, 5)), probed, 5)


def test_unsigned_process_keys() -> None:
    probed = sources(a=good("x"))
    processes = with_ranks(counts((0, -(2**63), 10, 10)), probed, None)
    assert ledger_rows("night", probed, processes)[0]["process_key"] == str(2**63)


def test_the_run_says_what_is_missing_lost_and_opaque() -> None:
    probed = sources(
        a=good("x", world_size=4, has_lost_events=True, gpu_name="H100", session_start_ns=2_000),
        b=Probe(reason="cut"),
        c=good("z", gpu_name="H100", session_start_ns=1_000),
    )
    processes = with_ranks(counts((0, 1, 10, 10), (2, 1, 10, 8)), probed, None)
    processes.loc[0, "opaque_ns"] = 500
    row = run_row(
        "night", None, probed, processes, ledger_rows("night", probed, processes), has_given_rank=False
    )
    assert (row["ranks_present"], row["ranks_missing"], row["world_size"]) == (2, [1, 3], 4)
    assert not row["is_complete"]
    assert row["incomplete_reason"] == (
        "1 of 3 sources quarantined; 2 ranks missing; "
        "the profiler says of 1 sources that not all CUDA events were collected"
    )
    assert (row["opaque_time_share"], row["n_launches"], row["gpu_name"]) == (0.25, 18, "H100")
    assert "--cuda-graph-trace=node" in row["remark"]
    assert row["started_at_utc"] == pd.Timestamp(1_000, unit="ns", tz="UTC")


@pytest.mark.parametrize(
    ("found", "first_launch", "expected"),
    [
        (good("x", is_window=True, first_call_id=1), 5, True),
        (good("x", first_call_id=1), 140, False),
        (good("x", first_call_id=2_610_905), 2_610_639, True),
        (good("x"), 140, None),
        (good("x"), 2_610_639, True),
        (good("x"), float("nan"), None),
    ],
)
def test_windows(found: Probe, first_launch: float, expected: bool | None) -> None:
    assert is_windowed(sources(a=found).entries[0], first_launch) is expected
