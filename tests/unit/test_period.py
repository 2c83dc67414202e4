"""The period of a launch sequence: against fleets and sequences whose iterations are known, and real traces."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stemroot_spark.fleet import FleetSpec, launches
from stemroot_spark.phases.period import periods

Ints = npt.NDArray[np.int64]
SEED = 20_261_130
LAYER, HEAD = [1, 2, 3, 4, 1, 5, 6, 7, 1, 8, 9, 2, 3, 4, 6], [20, 21, 3, 22, 23]


def iterations(kernels: list[int] | Ints) -> list[int]:
    found: list[int] = periods(np.asarray(kernels, dtype=np.int64)).iteration.tolist()
    return found


def counted(sizes: list[int]) -> list[int]:
    """Iterations of periods of these sizes, one after the other."""
    return [number for number, size in enumerate(sizes) for _ in range(size)]


@pytest.mark.parametrize(("layers", "iterations_made", "interval"), [(1, 4, 3), (2, 12, 3), (8, 60, 50)])
def test_iterations_of_a_fleet_are_found_without_its_ranges(
    layers: int, iterations_made: int, interval: int
) -> None:
    spec = FleetSpec(
        ranks=1, layers=layers, iterations=iterations_made, seed=1, evaluation_interval_iterations=interval
    )
    truth = launches(spec, 0)
    found = periods(truth.kernel_index)
    # The first iteration has the launches of the setup before it, which no other has.
    is_prologue = found.iteration == -1
    assert is_prologue.sum() == 11
    assert is_prologue[:11].all()
    assert np.array_equal(found.iteration[11:], truth.iteration[11:])
    assert set(found.stretch[11:].tolist()) == {0}


@pytest.mark.parametrize("made", [1, 2])
def test_layers_are_not_taken_for_iterations_where_a_training_trace_holds_too_few(made: int) -> None:
    spec = FleetSpec(ranks=1, layers=24, iterations=made, seed=1)
    assert set(iterations(launches(spec, 0).kernel_index)) == {-1}


@pytest.mark.parametrize("layers", [4, 32, 80, 126])
def test_layers_are_not_taken_for_iterations_where_iterations_repeat(layers: int) -> None:
    one = LAYER * layers + HEAD
    assert iterations(one * 5) == counted([len(one)] * 5)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=19),
    st.integers(3, 6),
    st.integers(0, 8),
    st.integers(0, 29),
)
def test_exact_repetition_is_divided_where_it_begins(
    rest: list[int], repeats: int, n_prologue: int, n_cut: int
) -> None:
    # A kernel that an iteration launches once makes the iteration the smallest period.
    template = [99, *rest]
    cut = template[: n_cut % len(template)]
    kernels = template * repeats + cut
    # Launches that nothing repeats, few enough not to hide the rest.
    prologue = [100 + i for i in range(min(n_prologue, len(kernels) // 4))]
    sizes = [len(template)] * repeats + [len(cut)] * (len(cut) > 0)
    assert iterations(prologue + kernels) == [-1] * len(prologue) + counted(sizes)


def test_sporadic_launches_inside_iterations_do_not_shift_later_ones() -> None:
    random = np.random.default_rng(SEED)
    template = random.integers(0, 30, 500).tolist()
    kernels: list[int] = random.integers(0, 40, 777).tolist()
    sizes = []
    for _ in range(40):
        extra = random.integers(30, 33, random.integers(1, 6)).tolist() if random.random() < 0.3 else []
        at = int(random.integers(1, 499))
        kernels += template[:at] + extra + template[at:]
        sizes.append(500 + len(extra))
    assert iterations(kernels) == [-1] * 777 + counted(sizes)


def test_launches_that_differ_or_are_missing_now_and_then_do_not_end_the_count() -> None:
    random = np.random.default_rng(SEED)
    template = random.integers(0, 30, 200).tolist()
    other = [*template[:50], *random.integers(50, 60, 20).tolist(), *template[70:]]
    shorter = template[:100] + template[103:]
    order = [template, template, template, other, template, shorter, other, template, template]
    assert iterations(list(chain(*order))) == counted([len(kernels) for kernels in order])


def test_a_long_interruption_starts_another_steady_stretch() -> None:
    random = np.random.default_rng(SEED)
    template = random.integers(0, 30, 200).tolist()
    kernels = template * 6 + random.integers(0, 30, 150).tolist() + template * 4
    found = periods(np.array(kernels))
    assert found.iteration.tolist() == counted([200] * 6) + [-1] * 150 + [6 + i for i in counted([200] * 4)]
    assert found.stretch.tolist() == [0] * 1_200 + [-1] * 150 + [1] * 800


def test_no_period_is_found_where_there_is_none() -> None:
    random = np.random.default_rng(SEED)
    sequences: list[list[int]] = [
        [],
        [1],
        [1, 2],
        [1, 2, 1, 2],
        [7] * 1_000,
        [7] * 500 + [8] + [7] * 500,
        *[random.integers(0, n, 3_000).tolist() for n in (2, 5, 30)],
    ]
    for kernels in sequences:
        assert set(iterations(kernels)) <= {-1}


def _codes(names: list[str]) -> Ints:
    return pd.factorize(pd.Series(names))[0].astype(np.int64)


def test_steps_of_a_real_training_trace_are_found(shared_data: Path) -> None:
    with gzip.open(shared_data / "kineto" / "trace_diff_control.json.gz", "rt") as stream:
        kernels = [event for event in json.load(stream)["traceEvents"] if event.get("cat") == "kernel"]
    kernels.sort(key=lambda event: event["args"]["correlation"])
    # The trace marks six ProfilerSteps.
    assert iterations(_codes([event["name"] for event in kernels])) == counted([1_428] * 6)


def test_the_two_kernels_of_a_real_solver_are_one_iteration(shared_data: Path) -> None:
    file = shared_data / "nsys_sqlite" / "rodinia_gaussian_2022.4.sqlite"
    with closing(sqlite3.connect(f"{file.as_uri()}?immutable=1", uri=True)) as database:
        rows = database.execute(
            "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = demangledName ORDER BY correlationId"
        ).fetchall()
    assert iterations(_codes([name for (name,) in rows])) == counted([2] * 4_095)
