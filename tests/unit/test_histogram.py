"""Cells and their moments against two-pass moments of the launches themselves."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stemroot_spark.errors import DataError
from stemroot_spark.histogram import (
    HISTOGRAM_COLUMNS,
    bucket_of,
    cells_from_histogram,
    histogram_of,
    prefix_moments,
    reference_of,
)


def _durations(seed: int = 7, size: int = 5_000) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.maximum(rng.lognormal(9.0, 1.2, size), 1.0).astype(np.int64)


def test_cells_partition_the_launches_by_duration() -> None:
    durations = _durations()
    cells = cells_from_histogram(histogram_of(durations))
    assert cells.n.sum() == durations.size
    assert cells.sum_ns.sum() == durations.sum()
    assert (cells.min_ns <= cells.max_ns).all()
    assert (cells.max_ns[:-1] < cells.min_ns[1:]).all()
    for i in range(0, len(cells), 97):
        inside = durations[(durations >= cells.min_ns[i]) & (durations <= cells.max_ns[i])]
        assert inside.size == cells.n[i]
        assert cells.mean_ns[i] == pytest.approx(inside.mean(), rel=1e-14)
        assert cells.m2[i] == pytest.approx(((inside - inside.mean()) ** 2).sum(), rel=1e-9, abs=1e-9)


@settings(max_examples=30)
@given(st.lists(st.integers(1, 2_000_000), min_size=1, max_size=60), st.data())
def test_moments_of_any_run_of_cells_equal_those_of_its_launches(
    values: list[int], data: st.DataObject
) -> None:
    durations = np.sort(np.array(values))
    cells = cells_from_histogram(histogram_of(durations))
    start = data.draw(st.integers(0, len(cells) - 1))
    stop = data.draw(st.integers(start + 1, len(cells)))
    inside = durations[(durations >= cells.min_ns[start]) & (durations <= cells.max_ns[stop - 1])]
    got = prefix_moments(cells).moments(start, stop)
    assert got.n == inside.size
    assert got.mean_ns == pytest.approx(inside.mean(), rel=1e-12)
    assert got.m2 == pytest.approx(inside.var() * inside.size, rel=1e-9, abs=1e-12 * durations.max() ** 2)
    if inside.size > 1:
        assert got.stddev_ns == pytest.approx(inside.std(ddof=1), rel=1e-8, abs=1e-6 * durations.max())


def test_a_narrow_kernel_of_long_launches_keeps_its_spread() -> None:
    # One second give or take a nanosecond: plain sums of squares in a double would lose it all.
    durations = np.full(100_000, 1_000_000_000) + np.tile([-1, 0, 1, 0], 25_000)
    cells = cells_from_histogram(histogram_of(durations))
    moments = prefix_moments(cells).moments(0, len(cells))
    assert moments.population_stddev_ns == pytest.approx(np.sqrt(0.5), rel=1e-4)


def test_order_of_rows_does_not_change_a_bit() -> None:
    rng = np.random.default_rng(3)
    durations = _durations()
    frame = histogram_of(durations, rng.integers(0, 4, durations.size))
    frame["sum_sq"] += 0.1  # not exactly representable, so that the order of adding would show
    expected = cells_from_histogram(frame)
    for seed in range(5):
        shuffled = cells_from_histogram(frame.sample(frac=1.0, random_state=seed))
        for name in ("n", "sum_ns", "mean_ns", "m2", "min_ns", "max_ns"):
            assert np.array_equal(getattr(expected, name), getattr(shuffled, name)), name


def test_configurations_merge_to_the_histogram_without_them() -> None:
    durations = _durations()
    configs = np.random.default_rng(4).integers(-5, 5, durations.size)
    merged = cells_from_histogram(histogram_of(durations, configs))
    plain = cells_from_histogram(histogram_of(durations))
    assert np.array_equal(merged.n, plain.n)
    assert np.array_equal(merged.sum_ns, plain.sum_ns)
    np.testing.assert_allclose(merged.m2, plain.m2, rtol=1e-9, atol=1e-9)


def test_m2_is_zero_exactly_for_equal_durations_and_never_negative() -> None:
    assert cells_from_histogram(histogram_of([12_345_677] * 9)).m2.tolist() == [0.0]
    frame = histogram_of([1_000_000, 1_000_001])
    frame["sum_sq"] = 0.0  # what rounding could leave at worst
    assert cells_from_histogram(frame).m2.tolist() == [0.0]


def test_rows_with_different_references_of_one_bucket_merge_exactly() -> None:
    durations = np.array([100_000, 100_003, 100_010, 100_020])
    frame = histogram_of(durations, [0, 0, 1, 1])
    assert frame["bucket"].nunique() == 1
    moved = frame.copy()
    moved.loc[1, "reference_ns"] = 100_005
    moved.loc[1, "sum_sq"] = float(5**2 + 15**2)
    expected = ((durations - durations.mean()) ** 2).sum()
    assert cells_from_histogram(moved).m2[0] == pytest.approx(expected, rel=1e-12)


def test_buckets_that_overlap_become_one_cell() -> None:
    # A writer with another logarithm may put a duration on an edge into the neighbouring bucket.
    frame = histogram_of([1023, 1024, 2000])
    other = histogram_of([1024]).assign(bucket=frame["bucket"][0], reference_ns=1023, sum_sq=1.0)
    cells = cells_from_histogram(pd.concat([frame, other]))
    assert cells.n.tolist() == [3, 1]
    assert cells.max_ns.tolist() == [1024, 2000]
    assert cells.m2[0] == pytest.approx(np.var([1023, 1024, 1024]) * 3)


def test_buckets_rise_with_duration_and_are_narrow() -> None:
    durations = np.unique(np.geomspace(1, 1e13, 20_000).astype(np.int64))
    buckets = bucket_of(durations)
    assert (np.diff(buckets) >= 0).all()
    assert (reference_of(buckets) >= 1).all()
    assert (np.abs(durations - reference_of(buckets)) <= 1 + durations / 1024).all()


def test_missing_column_is_named() -> None:
    frame = histogram_of([5, 6]).drop(columns=["sum_sq", "n"])
    with pytest.raises(DataError, match=r"n, sum_sq.*it has launch_config_id"):
        cells_from_histogram(frame)


@pytest.mark.parametrize(
    ("column", "value"), [("n", 0), ("min_ns", 0), ("max_ns", 3), ("sum_ns", 10_000), ("sum_sq", -1.0)]
)
def test_inconsistent_row_is_refused(column: str, value: float) -> None:
    frame = histogram_of([100, 200]).assign(**{column: value})
    with pytest.raises(DataError, match="inconsistent histogram row"):
        cells_from_histogram(frame)


def test_empty_and_null_histograms_are_refused() -> None:
    frame = histogram_of([])
    assert set(HISTOGRAM_COLUMNS) <= set(frame.columns)
    with pytest.raises(DataError, match="without rows"):
        cells_from_histogram(frame)
    with pytest.raises(DataError, match="nulls"):
        cells_from_histogram(histogram_of([5]).assign(sum_sq=np.nan))


def test_durations_that_are_not_positive_or_do_not_match_are_refused() -> None:
    with pytest.raises(DataError, match="-3 ns"):
        histogram_of([4, -3])
    with pytest.raises(DataError, match="equal length"):
        histogram_of([4, 3], [1])
