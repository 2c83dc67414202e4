"""Two profiles of one kernel: buckets of the first run's duration x that also hold sums over the second one's, x2.

Strata are cut on x, but what they are worth is seen in x2 of the same launches: where x merely happened to be long,
x2 is not. One aggregate over pairs gives the sums; from there on only buckets are handled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.histogram import HISTOGRAM_COLUMNS, histogram_of
from stemroot_spark.optimal.buckets import Buckets, merged_buckets
from stemroot_spark.optimal.cells import OrderedCells, cell_partition, cells_of_buckets
from stemroot_spark.optimal.model import PlanningModel

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

# Sums over the matched launches of a bucket with reference r: their number, sum x, sum x2, sum (x2 - r)^2,
# sum (x - r)(x2 - r), and sum (x2 - x)^2 / x.
PAIR_COLUMNS = (
    "n_matched",
    "matched_sum_ns",
    "repeat_sum_ns",
    "repeat_sum_sq",
    "cross_sum_sq",
    "difference_ns",
)
# Pseudo-degrees of freedom with which a kernel's relative variance stands beside that of an interval.
PRIOR_DEGREES_OF_FREEDOM = 4.0


class PairedBuckets(NamedTuple):
    """Buckets of x with sums over x2; arrays of shape (buckets,), sorted by configuration and x.

    repeat_ns: sum x2. repeat_m2: sum of squared deviations of x2 from its mean in the bucket, ns^2. cross: sum x x2,
    ns^2. difference_ns: Q = sum (x2 - x)^2 / x. n_matched: launches with a partner. Launches without one count with
    what the kernel leads to expect of theirs, see fill_unmatched.
    """

    first: Buckets
    repeat_ns: FloatArray
    repeat_m2: FloatArray
    cross: FloatArray
    difference_ns: FloatArray
    n_matched: IntArray

    def at(self, where: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> PairedBuckets:
        """The buckets at the given positions, or where a mask is true."""
        return PairedBuckets(
            self.first.at(where),
            self.repeat_ns[where],
            self.repeat_m2[where],
            self.cross[where],
            self.difference_ns[where],
            self.n_matched[where],
        )

    def merged(self, first: IntArray) -> PairedBuckets:
        """Buckets pooled into runs that begin at the positions first."""
        sizes = np.diff(np.append(first, self.n_matched.size))
        n, repeat = np.add.reduceat(self.first.n, first), np.add.reduceat(self.repeat_ns, first)
        deviation = self.repeat_ns / self.first.n - np.repeat(repeat / n, sizes)
        return PairedBuckets(
            merged_buckets(self.first, first),
            repeat,
            np.add.reduceat(self.repeat_m2 + self.first.n * deviation**2, first),
            np.add.reduceat(self.cross, first),
            np.add.reduceat(self.difference_ns, first),
            np.add.reduceat(self.n_matched, first),
        )

    def of_repeat(self) -> Buckets:
        """The same buckets as a histogram of x2; minimum and maximum are not those of x2 and only say "unequal"."""
        n = self.first.n
        return Buckets(
            self.first.config,
            n,
            np.rint(self.repeat_ns).astype(np.int64),
            self.repeat_m2,
            np.ones_like(n),
            np.full_like(n, 2),
        )


class PairedCells(NamedTuple):
    """Ordered cells of x, the same cells of x2, and the sums that only pairs have, shape (cells,).

    relative_variance: the kernel's X R / Y^2 - 1 over its matched launches (R = sum x2^2 / x), the squared relative
    spread of x2 around what is proportional to x; shrunk as fill_unmatched says. may_be_pps: whether pairs show that
    times are proportional, which is assumed of launches without partner.
    """

    profile: OrderedCells
    repeat: OrderedCells
    cross: FloatArray
    difference_ns: FloatArray
    n_matched: IntArray
    relative_variance: float
    may_be_pps: bool


def paired_histogram_of(
    durations_ns: npt.ArrayLike, repeat_ns: npt.ArrayLike, launch_config_ids: npt.ArrayLike | None = None
) -> pd.DataFrame:
    """Rows as the Spark aggregate writes them, from the launches of one kernel; repeat_ns is 0 without a partner.

    durations_ns, repeat_ns, launch_config_ids of shape (launches,). Returns launch_config_id, HISTOGRAM_COLUMNS and
    PAIR_COLUMNS.
    """
    x, y = (np.asarray(a, dtype=np.int64) for a in (durations_ns, repeat_ns))
    config = np.zeros_like(x) if launch_config_ids is None else np.asarray(launch_config_ids, dtype=np.int64)
    frame = histogram_of(x, config)
    order = np.lexsort((x, config))
    x, y = x[order], y[order]
    reference = np.repeat(frame["reference_ns"].to_numpy(), frame["n"].to_numpy())
    matched = y > 0
    from_x, from_y = (np.where(matched, a - reference, 0).astype(np.float64) for a in (x, y))
    sums = {
        "n_matched": matched.astype(np.int64),
        "matched_sum_ns": np.where(matched, x, 0),
        "repeat_sum_ns": y,
        "repeat_sum_sq": from_y**2,
        "cross_sum_sq": from_x * from_y,
        "difference_ns": np.where(matched, (y - x).astype(np.float64) ** 2 / x, 0.0),
    }
    first = np.cumsum(frame["n"].to_numpy()) - frame["n"].to_numpy()
    return frame.assign(**{name: np.add.reduceat(values, first) for name, values in sums.items()})


def paired_buckets(frame: pd.DataFrame, model: PlanningModel) -> tuple[PairedBuckets, float]:
    """Buckets of one kernel with sums over pairs, and its relative variance, from histogram rows in any order.

    frame: launch_config_id where the model uses it, HISTOGRAM_COLUMNS and PAIR_COLUMNS, one row per configuration and
    bucket. DataError for missing columns or no rows.
    """
    wanted = (*HISTOGRAM_COLUMNS, *PAIR_COLUMNS, *(("launch_config_id",) if model.use_configurations else ()))
    missing = [name for name in wanted if name not in frame.columns]
    if missing or frame.empty:
        raise DataError(f"pairs without {', '.join(missing) or 'rows'}: match two runs first")
    # Every column is a key, so that the order in which floats are added never depends on that of the rows.
    rows = frame.sort_values(list(wanted), kind="stable")
    columns = {name: rows[name].to_numpy() for name in wanted}
    n, sums, reference = (columns[k].astype(np.int64) for k in ("n", "sum_ns", "reference_ns"))
    config = columns["launch_config_id"].astype(np.int64) if model.use_configurations else np.zeros_like(n)
    squares = columns["sum_sq"].astype(np.float64)
    low, high = columns["min_ns"].astype(np.int64), columns["max_ns"].astype(np.int64)
    m2 = np.maximum(squares - (sums - n * reference).astype(np.float64) ** 2 / n, 0.0)
    first = Buckets(config, n, sums, np.where(low == high, 0.0, m2), low, high)
    filled, relative_variance = fill_unmatched(first, reference, columns, model.repeat_noise)
    buckets = filled.at(np.lexsort((first.min_ns, first.config)))
    starts = np.ones(n.size, dtype=np.bool_)
    starts[1:] = (np.diff(buckets.first.config) != 0) | (buckets.first.min_ns[1:] > buckets.first.max_ns[:-1])
    return (buckets if starts.all() else buckets.merged(np.flatnonzero(starts))), relative_variance


def fill_unmatched(
    first: Buckets, reference: IntArray, columns: dict[str, npt.NDArray[np.generic]], repeat_noise: float
) -> tuple[PairedBuckets, float]:
    """Pair sums of all launches of the buckets, and the kernel's relative variance v.

    A launch without a partner stays in the population: it counts with x2 = f x on average, f = Y / X of the kernel's
    matched launches, and with E[x2^2] = f^2 x^2 (1 + v). v is shrunk towards repeat_noise^2, worth
    PRIOR_DEGREES_OF_FREEDOM: one match says nothing of a spread. Without any f = 1.
    """
    matched, x_matched = (columns[k].astype(np.int64) for k in ("n_matched", "matched_sum_ns"))
    y = columns["repeat_sum_ns"].astype(np.float64)
    y_squares, cross, difference = (
        columns[k].astype(np.float64) for k in ("repeat_sum_sq", "cross_sum_sq", "difference_ns")
    )
    total_x, total_y = float(x_matched.sum()), float(y.sum())
    f, v = 1.0, 0.0
    if total_x > 0:
        f = total_y / total_x
        # X R - Y^2 = X Q - (X - Y)^2, which loses nothing while x2 is near x.
        v = max((total_x * float(difference.sum()) - (total_x - total_y) ** 2) / total_y**2, 0.0)
    degrees = max(float(matched.sum()) - 1.0, 0.0)
    v = (degrees * v + PRIOR_DEGREES_OF_FREEDOM * repeat_noise**2) / (degrees + PRIOR_DEGREES_OF_FREEDOM)
    x = first.sum_ns.astype(np.float64)
    n_left, x_left = (first.n - matched).astype(np.float64), x - x_matched
    y_left = f * x_left
    x_squares_left = x_left**2 / np.maximum(n_left, 1.0)
    repeat = y + y_left
    r = reference.astype(np.float64)
    # Squares about the reference, then about the mean of the bucket.
    left_squares = f**2 * (1.0 + v) * x_squares_left - 2.0 * r * y_left + n_left * r**2
    offset = repeat - first.n * r
    m2 = np.maximum(y_squares + np.where(n_left > 0, left_squares, 0.0) - offset**2 / first.n, 0.0)
    cross = cross + r * (y + x_matched) - matched * r**2 + f * x_squares_left
    # (x2 - x)^2 / x of x2 = f x (1 + e): x ((f - 1)^2 + f^2 v).
    difference = difference + x_left * ((f - 1.0) ** 2 + f**2 * v)
    return PairedBuckets(first, repeat, m2, cross, difference, matched), v


def paired_cells(
    buckets: PairedBuckets, relative_variance: float, model: PlanningModel, *, coarse: bool = False
) -> PairedCells:
    """Ordered cells of one kernel, at most model.max_cells of them, as stemroot_spark.optimal.cells cuts them on x."""
    order, _, cell = cell_partition(buckets.first, model, coarse=coarse)
    profile = cells_of_buckets(buckets.first, model, coarse=coarse)
    ordered = buckets.at(order)
    first = np.append(0, np.flatnonzero(np.diff(cell)) + 1)
    merged = ordered.merged(first)
    group_of = np.repeat(np.arange(len(profile.group_start) - 1), np.diff(profile.group_start))[cell]
    _, position = np.unique(ordered.first.config, return_inverse=True)
    key = group_of * (int(position.max()) + 1) + position
    unique, place = np.unique(key, return_inverse=True)
    squares = np.bincount(place, ordered.repeat_ns) ** 2
    config_squares = np.bincount(unique // (int(position.max()) + 1), squares)
    repeat = merged.of_repeat()
    return PairedCells(
        profile=profile,
        repeat=replace(
            profile,
            sum_ns=repeat.sum_ns,
            m2=repeat.m2,
            min_ns=repeat.min_ns,
            max_ns=repeat.max_ns,
            config_squares=config_squares.astype(np.float64),
        ),
        cross=merged.cross,
        difference_ns=merged.difference_ns,
        n_matched=merged.n_matched,
        relative_variance=relative_variance,
        may_be_pps=bool(2 * buckets.n_matched.sum() >= buckets.first.n.sum()),
    )
