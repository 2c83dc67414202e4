"""A kernel's launches by configuration and duration at full resolution, from rows of the histogram table.

The planner asks for them in every pass over every kernel, so reading them is plain numpy. Without configurations they
are the cells of stemroot_spark.histogram.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.histogram import HISTOGRAM_COLUMNS

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_INTEGERS = tuple(name for name in HISTOGRAM_COLUMNS if name != "sum_sq")


class Buckets(NamedTuple):
    """Launches by configuration and duration before coarsening, sorted by both; arrays of shape (buckets,)."""

    config: IntArray
    n: IntArray
    sum_ns: IntArray
    m2: FloatArray
    min_ns: IntArray
    max_ns: IntArray

    def at(self, where: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Buckets:
        """The buckets at the given positions, or where a mask is true."""
        return Buckets(
            self.config[where],
            self.n[where],
            self.sum_ns[where],
            self.m2[where],
            self.min_ns[where],
            self.max_ns[where],
        )


def config_buckets(frame: pd.DataFrame, use_configurations: bool) -> Buckets:
    """Disjoint buckets per configuration of one kernel, from its histogram rows in any order.

    frame: HISTOGRAM_COLUMNS and, with use_configurations, launch_config_id; without, all buckets carry
    configuration 0. Rows of one bucket are merged. DataError for missing columns, no rows, nulls or a row that
    contradicts itself.
    """
    wanted = (*HISTOGRAM_COLUMNS, *(("launch_config_id",) if use_configurations else ()))
    missing = [name for name in wanted if name not in frame.columns]
    if missing or frame.empty:
        raise DataError(
            f"histogram without {', '.join(missing) or 'rows'}: read it from the duration_histograms table"
        )
    number, references, n, sums, low, high = (_integers(frame, name) for name in _INTEGERS)
    config = _integers(frame, "launch_config_id") if use_configurations else np.zeros_like(n)
    squares = frame["sum_sq"].to_numpy(dtype=np.float64, na_value=np.nan)
    right = (n >= 1) & (low >= 1) & (high >= low) & (sums >= n * low) & (sums <= n * high) & (squares >= 0)
    if not right.all():
        row = frame.iloc[int(np.argmin(right))].to_dict()
        raise DataError(f"{(~right).sum()} inconsistent histogram row(s), the first: {row}: rebuild moments")
    # Sums of squares are taken about a reference inside the bucket, so this difference loses nothing.
    m2 = np.maximum(squares - (sums - n * references).astype(np.float64) ** 2 / n, 0.0)
    m2 = np.where(low == high, 0.0, m2)
    # Every column is a key, so that the order in which floats are added never depends on that of the rows.
    order = np.lexsort((m2, sums, n, high, low, number, config))
    number, rows = number[order], Buckets(config, n, sums, m2, low, high).at(order)
    first = np.flatnonzero(np.append(True, (np.diff(number) != 0) | (np.diff(rows.config) != 0)))
    buckets = merged_buckets(rows, first)
    return _disjoint(buckets.at(np.lexsort((buckets.min_ns, buckets.config))))


def merged_buckets(buckets: Buckets, first: IntArray) -> Buckets:
    """Buckets pooled into runs that begin at the positions first; the configuration is that of the first."""
    sizes = np.diff(np.append(first, buckets.n.size))
    n, sums = np.add.reduceat(buckets.n, first), np.add.reduceat(buckets.sum_ns, first)
    deviation = buckets.sum_ns / buckets.n - np.repeat(sums / n, sizes)
    low, high = np.minimum.reduceat(buckets.min_ns, first), np.maximum.reduceat(buckets.max_ns, first)
    m2 = np.add.reduceat(buckets.m2 + buckets.n * deviation**2, first)
    return Buckets(buckets.config[first], n, sums, np.where(low == high, 0.0, m2), low, high)


def _integers(frame: pd.DataFrame, name: str) -> IntArray:
    column = frame[name]
    if column.isna().any():
        raise DataError(f"histogram with nulls in {name}: rebuild moments")
    values: IntArray = column.to_numpy(dtype=np.int64)
    return values


def _disjoint(buckets: Buckets) -> Buckets:
    """Merges buckets of one configuration that overlap: two writers may disagree about a bucket's edge."""
    while True:
        starts = np.ones(buckets.n.size, dtype=np.bool_)
        starts[1:] = (buckets.config[1:] != buckets.config[:-1]) | (buckets.min_ns[1:] > buckets.max_ns[:-1])
        if starts.all():
            return buckets
        first = np.flatnonzero(starts)
        buckets = merged_buckets(buckets, first)
