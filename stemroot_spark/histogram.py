"""Duration histograms of one kernel: from rows of the histogram table to cells sorted by duration.

A histogram row counts the launches of one bucket of 1/1024 octave (0.07 % wide) with integers that merge by
addition: count, sum, sum of squared distances to a reference inside the bucket, minimum and maximum. A *cell*
is what the statistics work on: a bucket of all launch configurations together, with its own mean and spread,
so that moments of any run of cells are exact and only the places where one may cut are restricted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import DataError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_Number = TypeVar("_Number", np.int64, np.float64)

BUCKETS_PER_OCTAVE = 1024

_INTEGER_COLUMNS = ("bucket", "reference_ns", "n", "sum_ns", "min_ns", "max_ns")
HISTOGRAM_COLUMNS = ("bucket", "reference_ns", "n", "sum_ns", "sum_sq", "min_ns", "max_ns")


@dataclass(frozen=True)
class Cells:
    """Launches of one kernel grouped by duration; all arrays have shape (cells,) and ascend by duration.

    n launches, their sum in ns, their mean in ns, m2 the sum of squared deviations from that mean in ns^2,
    and the smallest and largest duration in ns. Cells do not overlap: max_ns[i] < min_ns[i + 1].
    """

    n: IntArray
    sum_ns: IntArray
    mean_ns: FloatArray
    m2: FloatArray
    min_ns: IntArray
    max_ns: IntArray

    def __len__(self) -> int:
        return len(self.n)


class Moments(NamedTuple):
    """Count, mean in ns, and sum of squared deviations from that mean in ns^2, of one group of launches."""

    n: int
    mean_ns: float
    m2: float

    @property
    def stddev_ns(self) -> float:
        """Standard deviation in ns with divisor n - 1; 0 for a single launch."""
        return float(np.sqrt(self.m2 / (self.n - 1))) if self.n > 1 else 0.0

    @property
    def population_stddev_ns(self) -> float:
        """Standard deviation in ns with divisor n."""
        return float(np.sqrt(self.m2 / self.n))


@dataclass(frozen=True)
class PrefixMoments:
    """Running sums over cells around a common integer centre; arrays of shape (cells + 1,), first element 0.

    n and shifted (sum of d - centre) are exact integers; squared is the sum of (d - centre)^2 in ns^2.
    Centring on the mean keeps the sums small, so that differences of them do not cancel.
    """

    centre_ns: int
    n: IntArray
    shifted: IntArray
    squared: FloatArray
    min_ns: IntArray
    max_ns: IntArray

    def moments(self, start: int, stop: int) -> Moments:
        """Pooled moments of the cells [start, stop) of what the sums run over; stop > start."""
        n = int(self.n[stop] - self.n[start])
        shifted = int(self.shifted[stop] - self.shifted[start])
        mean = self.centre_ns + shifted / n
        if self.min_ns[start] == self.max_ns[stop - 1]:
            return Moments(n, float(self.min_ns[start]), 0.0)
        m2 = float(self.squared[stop] - self.squared[start]) - shifted * shifted / n
        return Moments(n, mean, max(m2, 0.0))


def bucket_of(durations_ns: npt.ArrayLike) -> IntArray:
    """Bucket of each duration, floor(ln(d) * 1024 / ln 2); durations in ns, positive, any shape."""
    octaves = np.log(np.asarray(durations_ns, dtype=np.float64)) * (BUCKETS_PER_OCTAVE / np.log(2.0))
    buckets: IntArray = np.floor(octaves).astype(np.int64)
    return buckets


def reference_of(buckets: npt.ArrayLike) -> IntArray:
    """Integer in ns just below the lower edge of each bucket, at least 1: what squares are taken around."""
    edges = np.exp2(np.asarray(buckets, dtype=np.float64) / BUCKETS_PER_OCTAVE)
    references: IntArray = np.maximum(np.floor(edges), 1.0).astype(np.int64)
    return references


def histogram_of(durations_ns: npt.ArrayLike, launch_config_ids: npt.ArrayLike | None = None) -> pd.DataFrame:
    """Histogram of one kernel's durations, as the Spark aggregate writes it.

    durations_ns: shape (launches,), positive integers. launch_config_ids: same shape, int64; one
    configuration (id 0) when left out. Returns a row per configuration and bucket, sorted by both,
    with the columns launch_config_id and HISTOGRAM_COLUMNS. DataError for a duration that is not positive
    or for unequal shapes.
    """
    durations = np.asarray(durations_ns, dtype=np.int64)
    configs = (
        np.zeros(durations.shape, dtype=np.int64)
        if launch_config_ids is None
        else np.asarray(launch_config_ids, dtype=np.int64)
    )
    if durations.ndim != 1 or configs.shape != durations.shape:
        raise DataError(
            f"durations of shape {durations.shape} with launch configurations of shape {configs.shape}: "
            "give two arrays of one dimension and equal length"
        )
    if durations.size and durations.min() <= 0:
        raise DataError(
            f"a duration of {durations.min()} ns: reject launches without a positive duration first"
        )
    order = np.lexsort((durations, configs))
    durations, configs = durations[order], configs[order]
    buckets = bucket_of(durations)
    references = reference_of(buckets)
    first = np.flatnonzero(_starts_group(configs) | _starts_group(buckets))
    last = np.append(first[1:], durations.size)[: first.size] - 1
    return pd.DataFrame(
        {
            "launch_config_id": configs[first],
            "bucket": buckets[first],
            "reference_ns": references[first],
            "n": last - first + 1,
            "sum_ns": _group_sums(durations, first),
            "sum_sq": _group_sums((durations - references).astype(np.float64) ** 2, first),
            "min_ns": durations[first],
            "max_ns": durations[last],
        }
    )


def cells_from_histogram(frame: pd.DataFrame) -> Cells:
    """Cells of one kernel from its histogram rows, in any order and of any number of configurations.

    frame: the HISTOGRAM_COLUMNS (others are ignored), integers but for sum_sq, sum (d - reference_ns)^2 as
    float64. Rows of the same bucket are merged, and so are buckets whose durations overlap (two writers may
    disagree about a duration on a bucket's edge), since cells must be disjoint intervals. m2 is 0 where all
    durations are equal and never negative. DataError names missing columns or the first inconsistent row.
    """
    rows = _validated_rows(frame)
    cell_of_row = _cell_numbers(rows)
    # Sorting by every column fixes the order in which floats are added, whatever the order of the rows.
    keys = [rows[name].to_numpy() for name in HISTOGRAM_COLUMNS]
    order = np.lexsort([*keys, cell_of_row])
    rows = rows.iloc[order]
    first = np.flatnonzero(_starts_group(cell_of_row[order]))

    n = _ints(rows, "n")
    sums = _ints(rows, "sum_ns")
    references = _ints(rows, "reference_ns")
    reference = np.minimum.reduceat(references, first)
    distance = references - np.repeat(reference, np.diff(np.append(first, len(rows))))
    # Squares around the cell's reference s: (d - s)^2 = (d - r)^2 + 2 (r - s)(d - r) + (r - s)^2.
    row_squares = (
        rows["sum_sq"].to_numpy(dtype=np.float64)
        + 2.0 * distance * (sums - n * references)
        + n * distance.astype(np.float64) ** 2
    )
    cell_n = _group_sums(n, first)
    cell_sum = _group_sums(sums, first)
    shifted = (cell_sum - cell_n * reference).astype(np.float64)
    m2 = np.maximum(_group_sums(row_squares, first) - shifted**2 / cell_n, 0.0)
    cell_min = np.minimum.reduceat(_ints(rows, "min_ns"), first)
    cell_max = np.maximum.reduceat(_ints(rows, "max_ns"), first)
    return Cells(
        n=cell_n,
        sum_ns=cell_sum,
        mean_ns=reference + shifted / cell_n,
        m2=np.where(cell_min == cell_max, 0.0, m2),
        min_ns=cell_min,
        max_ns=cell_max,
    )


def prefix_moments(cells: Cells, start: int = 0, stop: int | None = None) -> PrefixMoments:
    """Running sums over the cells [start, stop), all by default, centred on their rounded mean.

    The moments of a sub-run [i, j) are then those of the cells [start + i, start + j).
    """
    part = slice(start, len(cells) if stop is None else stop)
    n, sums = cells.n[part], cells.sum_ns[part]
    centre = round(int(sums.sum()) / int(n.sum()))
    shifted = sums - n * centre
    squared = cells.m2[part] + shifted.astype(np.float64) ** 2 / n
    return PrefixMoments(
        centre_ns=centre,
        n=np.concatenate(([0], np.cumsum(n))).astype(np.int64),
        shifted=np.concatenate(([0], np.cumsum(shifted))).astype(np.int64),
        squared=np.concatenate(([0.0], np.cumsum(squared))),
        min_ns=cells.min_ns[part],
        max_ns=cells.max_ns[part],
    )


def _starts_group(sorted_keys: IntArray) -> npt.NDArray[np.bool_]:
    starts = np.ones(sorted_keys.shape, dtype=np.bool_)
    starts[1:] = sorted_keys[1:] != sorted_keys[:-1]
    return starts


def _group_sums(values: npt.NDArray[_Number], first: IntArray) -> npt.NDArray[_Number]:
    sums: npt.NDArray[_Number] = np.add.reduceat(values, first) if first.size else values[:0]
    return sums


def _ints(rows: pd.DataFrame, column: str) -> IntArray:
    return rows[column].to_numpy(dtype=np.int64)


def _validated_rows(frame: pd.DataFrame) -> pd.DataFrame:
    missing = [name for name in HISTOGRAM_COLUMNS if name not in frame.columns]
    if missing:
        raise DataError(
            f"histogram without column(s) {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}: "
            "read it from the duration_histograms table"
        )
    if frame.empty:
        raise DataError("histogram without rows: a kernel has at least one launch, run moments for it first")
    rows = frame.loc[:, list(HISTOGRAM_COLUMNS)]
    if rows.isna().to_numpy().any():
        raise DataError("histogram with nulls: every column of duration_histograms is NOT NULL, rebuild it")
    rows = rows.astype({**dict.fromkeys(_INTEGER_COLUMNS, "int64"), "sum_sq": "float64"})
    n, sums, low, high = (_ints(rows, name) for name in ("n", "sum_ns", "min_ns", "max_ns"))
    squares = rows["sum_sq"].to_numpy(dtype=np.float64)
    wrong = (n < 1) | (low < 1) | (high < low) | (sums < n * low) | (sums > n * high) | (squares < 0)
    if wrong.any():
        row = rows.iloc[int(np.argmax(wrong))].to_dict()
        raise DataError(f"{wrong.sum()} inconsistent histogram row(s), the first: {row}: rebuild moments")
    return rows


def _cell_numbers(rows: pd.DataFrame) -> IntArray:
    """Cell of each row: one per bucket, but buckets whose durations overlap share one."""
    buckets, bucket_of_row = np.unique(_ints(rows, "bucket"), return_inverse=True)
    low = np.full(buckets.size, np.iinfo(np.int64).max)
    high = np.zeros(buckets.size, dtype=np.int64)
    np.minimum.at(low, bucket_of_row, _ints(rows, "min_ns"))
    np.maximum.at(high, bucket_of_row, _ints(rows, "max_ns"))
    disjoint = low[1:] > np.maximum.accumulate(high)[:-1]
    cell_of_bucket = np.concatenate(([0], np.cumsum(disjoint))).astype(np.int64)
    return cell_of_bucket[bucket_of_row]
