"""Launch noise from repetitions: how far a launch's time is from that of the same launch repeated.

The spread of a logarithm of ratios is read off two symmetric quantiles, which a few wild launches do not move, and
divided by what these quantiles are apart in a normal sample of the same size (expected order statistics after Blom
1958).

A ratio to a second profile is what a ratio to a simulation would be if it were another run: its spread is taken as it
is. It matters to intervals and to launches without partner; plans from two profiles read variances off the second.
Noise from iterations goes into plans, and a simulator that repeats itself has none of its own: a ratio holds the noise
of two launches, a difference of two ratios that of four, and the spread of one launch is smaller by the root of that.

A second profile repeats the very same work, so that every kernel counts by its time. An iteration repeats it with other
inputs, and a kernel may take another path through its code: that is no noise, hence quartiles, and the median kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import ndtri

FloatArray = npt.NDArray[np.float64]

# Quantiles that spreads are read off: this one and its mirror image.
PAIR_TAIL, ITERATION_TAIL = 0.05, 0.25
# What a ratio rounded to four digits can tell.
LEAST_NOISE = 1e-4
# Fewer repetitions of a kernel than this say too little to be counted, and fewer in all leave the default in place.
LEAST_REPETITIONS = 20


class MeasuredNoise(NamedTuple):
    """Relative launch noise between profile and simulation, and where it comes from.

    source: option, second profile, iterations or default. With two profiles between_profiles is the spread of their
    ratio, and added what a simulation was said to add to it.
    """

    value: float
    source: str
    between_profiles: float = 0.0
    added: float = 0.0


def noise_of_two_profiles(between: float | None, stated: float | None, default: float) -> MeasuredNoise:
    """The noise to plan with from two profiles; between is None where too little was repeated, default then stands in.

    A stated noise is what the simulation adds to the second profile: the spread of simulated to first profiled time
    is that of both.
    """
    known = default if between is None else between
    if stated is not None:
        return MeasuredNoise(float(np.hypot(known, stated)), "option", known, stated)
    return MeasuredNoise(known, "default" if between is None else "second profile", known)


def noise_of_second_profile(ranges: pd.DataFrame) -> float | None:
    """Relative spread of a launch's time between two profiles; None where too little was repeated.

    ranges: a row per kernel with n (ratios), low and high (quantiles PAIR_TAIL and 1 - PAIR_TAIL of their logs) and
    time_ns (of the launches behind them). The kernels' squared spreads are averaged with their time as weight, since
    noise adds to the error of the total in proportion to it.
    """
    counted = _counted(ranges)
    if counted.empty:
        return None
    weights = counted["time_ns"].to_numpy(dtype=np.float64)
    return _relative(float(np.average(_spread(counted, PAIR_TAIL) ** 2, weights=weights)))


def ranges_of_pairs(kernel: npt.ArrayLike, x_ns: npt.ArrayLike, repeat_ns: npt.ArrayLike) -> pd.DataFrame:
    """Rows as noise_of_second_profile takes them, from launches: their kernel and their durations in both profiles.

    Arrays of shape (launches,); a repeat of 0 is a launch without partner, which tells nothing.
    """
    frame = pd.DataFrame({"kernel_id": kernel, "time_ns": x_ns, "repeat_ns": repeat_ns})
    frame = frame[frame["repeat_ns"] > 0]
    frame = frame.assign(value=np.log(frame["repeat_ns"] / frame["time_ns"]))
    grouped = frame.groupby("kernel_id", sort=True)
    return pd.DataFrame(
        {
            "n": grouped["value"].count(),
            "low": grouped["value"].quantile(PAIR_TAIL),
            "high": grouped["value"].quantile(1.0 - PAIR_TAIL),
            "time_ns": grouped["time_ns"].sum(),
        }
    ).reset_index()


def noise_of_iterations(ranges: pd.DataFrame, launches_per_value: int) -> float | None:
    """Relative spread of one launch from iterations, that of the median kernel; None where too little was repeated.

    ranges: a row per kernel with n, low and high, the latter quantiles ITERATION_TAIL and 1 - ITERATION_TAIL of
    values that hold the noise of launches_per_value launches.
    """
    counted = _counted(ranges)
    if counted.empty:
        return None
    return _relative(float(np.median(_spread(counted, ITERATION_TAIL))) ** 2 / launches_per_value)


def normal_range(n: npt.ArrayLike, tail: float) -> FloatArray:
    """Expected distance between the quantiles tail and 1 - tail of n standard normal values.

    Quantiles are interpolated between order statistics k at (k - 1) / (n - 1).
    """
    size = np.asarray(n, dtype=np.float64)
    place = tail * (size - 1.0)
    below = np.floor(place)
    low, next_low = (ndtri((k + 1.0 - 0.375) / (size + 0.25)) for k in (below, below + 1.0))
    expected: FloatArray = -2.0 * (low + (place - below) * (next_low - low))
    return expected


def _counted(ranges: pd.DataFrame) -> pd.DataFrame:
    return ranges[ranges["n"] >= LEAST_REPETITIONS]


def _spread(ranges: pd.DataFrame, tail: float) -> FloatArray:
    width = (ranges["high"] - ranges["low"]).to_numpy(dtype=np.float64)
    spread: FloatArray = width / normal_range(ranges["n"], tail)
    return spread


def _relative(variance_of_log: float) -> float:
    """Relative spread of a lognormal factor, at least LEAST_NOISE."""
    return max(float(np.sqrt(np.expm1(variance_of_log))), LEAST_NOISE)
