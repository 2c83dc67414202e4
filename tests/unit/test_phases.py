"""Iterations and phases from NVTX ranges: against a scan of all ranges for every call, and against known fleets."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stemroot_spark.config import load_config
from stemroot_spark.errors import ConfigError, UsageError
from stemroot_spark.fleet import PHASES, FleetSpec, WriterOptions, launches, write_fleet
from stemroot_spark.phases.patterns import NONE, Patterns
from stemroot_spark.phases.ranges import (
    ABSENT,
    DOMAIN_CREATE,
    OPEN_END_NS,
    PUSH_POP,
    START_END,
    NvtxEvents,
    matched_ranges,
)
from stemroot_spark.phases.timeline import CallLabels, Labeller
from stemroot_spark.sources.nsys_ranges import parquet_tables, read_calls, read_events, sqlite_tables

PATTERNS = Patterns(
    (r"^iteration (\d+)$", r"^step (\d+)$", r"^train$"), (("forward", "^forward"), ("backward", "^backward"))
)
MAIN, AUTOGRAD, OTHER_PROCESS = 0x0001_000001_000001, 0x0001_000001_000002, 0x0001_000002_000001
DEFAULTS = load_config().ingest.patterns()


class Event(NamedTuple):
    """A row of NVTX_EVENTS."""

    name: str
    start: int
    end: int | None
    thread: int = MAIN
    kind: int = PUSH_POP
    end_thread: int = ABSENT
    domain: int = 0


def events(*rows: Event) -> NvtxEvents:
    def ints(values: list[int]) -> Any:
        return np.array(values, dtype=np.int64)

    return NvtxEvents(
        event_type=ints([row.kind for row in rows]),
        start_ns=ints([row.start for row in rows]),
        end_ns=ints([OPEN_END_NS if row.end is None else row.end for row in rows]),
        thread=ints([row.thread for row in rows]),
        end_thread=ints([row.end_thread for row in rows]),
        domain=ints([row.domain for row in rows]),
        name=[row.name for row in rows],
    )


def label(rows: list[Event], thread: int, time: int, patterns: Patterns = PATTERNS) -> tuple[Any, Any]:
    """Iteration and name of the phase of one call; None for neither."""
    labeller = Labeller(matched_ranges(events(*rows), patterns))
    iteration, phase = labeller.label(np.array([thread]), np.array([time]))
    return (
        None if iteration[0] == NONE else int(iteration[0]),
        None if phase[0] == NONE else patterns.phase_names[phase[0]],
    )


def test_the_innermost_phase_and_the_iteration_around_it_hold() -> None:
    rows = [
        Event("iteration 7", 0, 100),
        Event("backward", 10, 90),
        Event("layer 3", 15, 60),
        Event("forward recomputed", 20, 50),
    ]
    found = [label(rows, MAIN, time) for time in (-1, 0, 10, 19, 20, 49, 50, 90, 99, 100)]
    phases = [None, None, "backward", "backward", "forward", "forward", "backward", None, None, None]
    assert found == list(zip([None, *[7] * 8, None], phases, strict=True))


def test_another_thread_of_the_process_takes_both_from_the_main_thread() -> None:
    rows = [Event("iteration 7", 0, 100), Event("backward", 10, 90), Event("forward", 20, 30, AUTOGRAD)]
    assert label(rows, AUTOGRAD, 50) == (7, "backward")
    assert label(rows, AUTOGRAD, 25) == (7, "forward")
    assert label(rows, AUTOGRAD, 95) == (7, None)
    assert label(rows, OTHER_PROCESS, 50) == (None, None)


def test_a_thread_with_iterations_of_its_own_takes_nothing_from_others() -> None:
    rows = [Event("iteration 7", 0, 100), Event("forward", 0, 100), Event("iteration 8", 20, 30, AUTOGRAD)]
    assert label(rows, AUTOGRAD, 25) == (8, None)
    assert label(rows, AUTOGRAD, 50) == (None, None)


def test_a_range_without_a_number_has_its_position_on_its_thread() -> None:
    rows = [Event("train", start, start + 5, thread) for start in (30, 10, 20) for thread in (MAIN, AUTOGRAD)]
    assert [label(rows, MAIN, time) for time in (12, 22, 32)] == [(0, None), (1, None), (2, None)]
    assert label(rows, AUTOGRAD, 32) == (2, None)


def test_the_first_pattern_that_matches_in_a_process_hides_later_ones_there() -> None:
    rows = [
        Event("iteration 7", 0, 100),
        Event("step 3", 10, 20),
        Event("train", 30, 40),
        Event("step 3", 10, 20, OTHER_PROCESS),
    ]
    assert label(rows, MAIN, 15) == (7, None)
    assert label(rows, MAIN, 35) == (7, None)
    assert label(rows, OTHER_PROCESS, 15) == (3, None)


def test_a_start_end_range_is_its_thread_s_unless_another_thread_ends_it() -> None:
    own = [
        Event("iteration 1", 0, 50, MAIN, START_END, MAIN),
        Event("iteration 2", 0, 50, AUTOGRAD, START_END),
    ]
    assert label(own, MAIN, 10) == (1, None)
    assert label(own, AUTOGRAD, 10) == (2, None)
    shared = [Event("forward", 0, 50, MAIN, START_END, AUTOGRAD), Event("iteration 2", 0, 90, AUTOGRAD)]
    assert label(shared, AUTOGRAD, 10) == (2, "forward")
    assert label(shared, MAIN, 10) == (2, "forward")


def test_overlapping_ranges_give_way_to_the_one_begun_last() -> None:
    rows = [
        Event("iteration 1", 0, 50, kind=START_END),
        Event("iteration 2", 40, 80, kind=START_END),
        Event("iteration 3", 60, 70, kind=START_END),
    ]
    assert [label(rows, MAIN, time)[0] for time in (39, 40, 55, 65, 75, 80)] == [1, 2, 2, 3, 2, None]


def test_an_open_range_ends_with_the_range_around_it_or_the_capture() -> None:
    rows = [Event("iteration 1", -5, 50), Event("forward", 10, None), Event("iteration 2", 60, None)]
    assert label(rows, MAIN, -3) == (1, None)
    assert label(rows, MAIN, 49) == (1, "forward")
    assert label(rows, MAIN, 55) == (None, None)
    assert label(rows, MAIN, 10**18) == (2, None)


def test_ranges_that_end_before_they_start_and_marks_are_passed_over() -> None:
    assert matched_ranges(events(Event("iteration 1", 10, 9), Event("iteration 2", 10, 10)), PATTERNS).empty
    assert matched_ranges(events(Event("iteration 1", 0, 9, kind=34)), PATTERNS).empty
    assert matched_ranges(events(), PATTERNS).empty


def test_domains_are_told_apart_inside_each_process() -> None:
    rows = [
        Event("trainer", 0, None, kind=DOMAIN_CREATE, domain=3),
        Event("other", 0, None, OTHER_PROCESS, DOMAIN_CREATE, domain=3),
        *[Event("iteration 1", 0, 9, thread, domain=3) for thread in (MAIN, OTHER_PROCESS)],
        Event("iteration 2", 20, 29),
    ]
    only = Patterns(PATTERNS.iteration, PATTERNS.phases, ("trainer",))
    assert label(rows, MAIN, 5, only) == (1, None)
    assert label(rows, OTHER_PROCESS, 5, only) == (None, None)
    assert label(rows, MAIN, 25, only) == (None, None)
    assert label(rows, MAIN, 25, Patterns(PATTERNS.iteration, PATTERNS.phases, ("",))) == (2, None)


def _scanned(rows: list[Event], thread: int, time: int) -> tuple[Any, Any]:
    """The rules again, as a scan; numbered iterations and closed ranges only."""

    def innermost(candidates: list[tuple[Event, Any]]) -> Any:
        holding = [
            (row, value) for row, value in candidates if row.end is not None and row.start <= time < row.end
        ]
        key = [(row.start, -(row.end or 0), i) for i, (row, _) in enumerate(holding)]
        return holding[max(range(len(key)), key=key.__getitem__)][1] if key else None

    process = [row for row in rows if row.thread >> 24 == thread >> 24]

    def is_shared(row: Event) -> bool:
        return row.kind == START_END and row.end_thread not in (ABSENT, row.thread)

    own = [row for row in process if is_shared(row) or row.thread == thread]
    numbered = [row for row in process if row.name.startswith("iteration")]
    found = []
    for of in (
        lambda row: int(row.name.split()[1]) if row.name.startswith("iteration") else None,
        lambda row: row.name if row.name in ("forward", "backward") else None,
    ):
        value = innermost([(row, of(row)) for row in own if of(row) is not None])
        has_own = any(row.thread == thread and not is_shared(row) for row in numbered)
        if value is None and not has_own:
            value = innermost([(row, of(row)) for row in process if of(row) is not None])
        found.append(value)
    return found[0], found[1]


_EVENTS = st.lists(
    st.builds(
        lambda name, start, length, thread, kind, end_thread: Event(
            name, start, start + length, thread, kind, end_thread
        ),
        st.sampled_from(["iteration 1", "iteration 2", "iteration 3", "forward", "backward", "layer"]),
        st.integers(-5, 40),
        st.integers(1, 30),
        st.sampled_from([MAIN, MAIN, AUTOGRAD, OTHER_PROCESS]),
        st.sampled_from([PUSH_POP, START_END]),
        st.sampled_from([ABSENT, MAIN, AUTOGRAD]),
    ),
    max_size=12,
)


@given(_EVENTS)
def test_labels_are_those_of_a_scan_of_all_ranges(rows: list[Event]) -> None:
    # Push/pop ranges may overlap here, which none does in a trace: the rules hold all the same.
    labeller = Labeller(matched_ranges(events(*rows), PATTERNS))
    times = np.arange(-7, 75)
    for thread in (MAIN, AUTOGRAD, OTHER_PROCESS):
        iteration, phase = labeller.label(np.full(len(times), thread), times)
        found = [
            (None if i == NONE else i, None if p == NONE else PATTERNS.phase_names[p])
            for i, p in zip(iteration.tolist(), phase.tolist(), strict=True)
        ]
        assert found == [_scanned(rows, thread, time) for time in times.tolist()]


@pytest.mark.parametrize(
    ("name", "iteration", "phase"),
    [
        ("iteration 12", 12, None),
        ("Iteration 12/100", 12, None),
        ("step 12", 12, None),
        ("global_step=12", 12, None),
        ("ProfilerStep#12, op_id = 3", 12, None),
        ("train#_r=1,step_num=12#", 12, None),
        ("iteration 99999999999", None, None),
        ("optimizer step 3", None, "optimizer"),
        ("Optimizer.step#AdamW.step", None, "optimizer"),
        ("forward-compute", None, "forward"),
        ("forward-backward", None, None),
        ("FSDP::pre_forward (blocks.0)", None, "forward"),
        ("aten::convolution_backward, seq = 1", None, None),
        ("autograd::engine::evaluate_function: AddmmBackward0", None, "backward"),
        ("AddmmBackward0, seq = 3", None, "backward"),
        ("validation_step", None, "evaluation"),
        ("forward" + "1" * 5_000 + "x step_num=3", 3, None),
        *[(name, None, name) for name in ("forward", "backward", "optimizer", "evaluation", "setup")],
    ],
)
def test_the_default_patterns_know_the_names_of_common_frameworks(
    name: str, iteration: int | None, phase: str | None
) -> None:
    found = DEFAULTS.match(name)
    assert (None if found.number == NONE else found.number) == iteration
    assert (None if found.phase == NONE else DEFAULTS.phase_names[found.phase]) == phase


def test_of_calls_with_one_id_the_first_in_a_range_counts() -> None:
    def ints(*values: int) -> Any:
        return np.array(values, dtype=np.int64)

    one = CallLabels.of(ints(7, 5, 6, 5), ints(1, 9, 3, 4), ints(1, 2, NONE, 3), ints(0, NONE, NONE, NONE))
    both = CallLabels.union([CallLabels.none(), CallLabels.of(ints(7), ints(0), ints(4), ints(1)), one])
    iteration, phase = both.find(ints(5, 7, 6, 8, 0))
    assert iteration.tolist() == [3, 4, NONE, NONE, NONE]
    assert phase.tolist() == [NONE, 1, NONE, NONE, NONE]
    assert CallLabels.union([]).find(ints(5))[0].tolist() == [NONE]


def test_patterns_of_a_configuration_replace_the_default_ones(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "[ingest]\niteration_patterns = ['^batch (\\d+)']\n[ingest.phase_patterns]\nrollout = '^roll'\n",
        "utf-8",
    )
    patterns = load_config([str(file)], ["ingest.nvtx_domains=['trainer']"]).ingest.patterns()
    assert patterns == Patterns((r"^batch (\d+)",), (("rollout", "^roll"),), ("trainer",))


@pytest.mark.parametrize(
    "override", ["iteration_patterns=['(']", "iteration_patterns=[1]", "phase_patterns={a='*'}"]
)
def test_a_pattern_that_is_no_regular_expression_is_refused(override: str) -> None:
    with pytest.raises(UsageError, match="pattern"):
        load_config(overrides=[f"ingest.{override}"])


def test_patterns_of_another_type_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be list"):
        load_config(overrides=["ingest.iteration_patterns='^step'"])


# Whole exports.


def _files(folder: Path) -> dict[str, str]:
    return {file.stem.lower(): str(file) for file in folder.glob("*.parquet")}


def _labels(read: Any, patterns: Patterns = DEFAULTS) -> dict[tuple[int, int], tuple[int, int]]:
    """Iteration and phase by process and correlation id."""
    labeller = Labeller(matched_ranges(read_events(read, patterns), patterns))
    found = {}
    for calls in read_calls(read):
        labels = labeller.label(calls.thread, calls.start_ns)
        for thread, correlation, *values in zip(calls.thread, calls.correlation_id, *labels, strict=True):
            found[int(thread) >> 24, int(correlation)] = (int(values[0]), int(values[1]))
    return found


@pytest.mark.parametrize(
    "options", [{}, {"has_autograd_thread": True, "hardware_id": 200, "schema_version": "oldest"}]
)
def test_every_launch_of_a_fleet_has_its_iteration_and_phase(tmp_path: Path, options: dict[str, Any]) -> None:
    spec = FleetSpec(ranks=1, layers=2, iterations=6, seed=3, evaluation_interval_iterations=4)
    write_fleet(tmp_path / "fleet", spec, WriterOptions(has_layer_ranges=True, **options))
    with parquet_tables(_files(tmp_path / "fleet" / "rank-00000")) as read:
        found = _labels(read)
    kernels = pq.read_table(tmp_path / "fleet" / "rank-00000" / "CUPTI_ACTIVITY_KIND_KERNEL.parquet")
    order = sorted(kernels["correlationId"].to_pylist())
    process = (kernels["globalPid"][0].as_py() + 2**63) % 2**64 - 2**63 >> 24
    truth = launches(spec, 0)
    expected = [
        (iteration, DEFAULTS.phase_names.index(PHASES[phase]))
        for iteration, phase in zip(truth.iteration.tolist(), truth.phase.tolist(), strict=True)
    ]
    assert [found[process, correlation] for correlation in order] == expected


def test_a_real_report_reads_the_same_from_parquet_and_sqlite(shared_data: Path) -> None:
    with parquet_tables(_files(shared_data / "nsys_parquetdir" / "h100_2rank_llm_2026.2")) as read:
        one = _labels(read)
    with sqlite_tables(str(shared_data / "nsys_sqlite" / "h100_2rank_llm_2026.2.sqlite")) as read:
        other = _labels(read)
    assert one == other
    # A window of a forward pass: 68 ranges of FSDP hooks, and no iteration.
    forward = DEFAULTS.phase_names.index("forward")
    assert set(one.values()) == {(NONE, NONE), (NONE, forward)}


def _exported(folder: Path, nvtx: dict[str, Any], strings: dict[str, Any]) -> dict[str, str]:
    pq.write_table(pa.table(nvtx), folder / "NVTX_EVENTS.parquet")
    pq.write_table(pa.table(strings), folder / "StringIds.parquet")
    return _files(folder)


def test_odd_columns_of_a_parquet_export_are_read(tmp_path: Path) -> None:
    nvtx = {
        "start": pa.array([0, 10, 20, 30, None], pa.int64()),
        "end": pa.array([9, None, 29, 39, 5], pa.int64()),
        "eventType": pa.array([59, 59, 59, 59, 59], pa.uint32()),
        "text": pa.array(["iteration 1", None, None, "noise", "iteration 5"]).dictionary_encode(),
        "textId": pa.array([None, 7, 8, None, None], pa.uint32()),
        # Decimal is what some writers make of unsigned numbers; the top bit is a hardware id above 127.
        "globalTid": pa.array([2**63 + 1] * 5, pa.decimal128(20, 0)),
        "binaryData": pa.array([b"\xff\xfe"] * 5).cast(pa.binary()),
    }
    files = _exported(
        tmp_path, nvtx, {"id": pa.array([7, 8], pa.uint32()), "value": pa.array([b"step 2", b"\xff"])}
    )
    with parquet_tables(files) as read:
        found = read_events(read, DEFAULTS)
    assert found.name == ["iteration 1", "step 2"]
    assert found.thread.tolist() == [-(2**63) + 1] * 2
    assert found.end_ns.tolist() == [9, OPEN_END_NS]


def test_absent_empty_and_damaged_tables_hold_no_ranges(tmp_path: Path) -> None:
    (tmp_path / "NVTX_EVENTS.parquet").write_bytes(b"PAR1 and no more")
    for files in ({}, _files(tmp_path)):
        with parquet_tables(files) as read:
            assert read_events(read, DEFAULTS).name == []
            assert list(read_calls(read)) == []
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as database, database:
        database.execute("CREATE TABLE NVTX_EVENTS (start, text, globalTid, eventType)")
        database.execute("INSERT INTO NVTX_EVENTS VALUES ('soon', 'iteration 1', 1, 59), (1, 5, 1, 59)")
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (correlationId)")
    with sqlite_tables(str(tmp_path / "empty.sqlite")) as read:
        assert read_events(read, DEFAULTS).name == []
        assert list(_lengths(read)) == []


def _lengths(read: Any) -> Iterator[int]:
    return (len(calls.thread) for calls in read_calls(read))
