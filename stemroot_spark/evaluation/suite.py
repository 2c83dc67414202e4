"""Summaries over several runs as papers make them, beside what they hide: the worst run."""

from __future__ import annotations

import numpy as np
import pandas as pd

KEYS = ("method", "guarantee", "protocol", "outcome", "model_parameter")
SUMMARY_COLUMNS = (
    *KEYS,
    "n_runs",
    "n_cannot_run",
    "harmonic_speedup",
    "least_speedup",
    "mean_error",
    "worst_mean_error",
    "worst_error",
    "worst_bias",
    "least_within_epsilon",
    "least_interval_coverage",
)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per method and protocol from rows of evaluations of several runs; columns SUMMARY_COLUMNS.

    harmonic_speedup: harmonic mean of the speedups, what a suite of equally long runs would gain together; mean_error:
    arithmetic mean of the runs' mean errors. Both only over the runs where the method ran. worst_error is the largest
    error of any draw of any run.
    """
    summaries = []
    for key, group in rows.groupby(list(KEYS), dropna=False, sort=False):
        ran = group[group["status"] == "ok"]
        summary = dict(zip(KEYS, key if isinstance(key, tuple) else (key,), strict=True))
        summary.update(n_runs=len(ran), n_cannot_run=len(group) - len(ran))
        summary.update(_figures(ran) if len(ran) else {})
        summaries.append(summary)
    return pd.DataFrame(summaries, columns=list(SUMMARY_COLUMNS))


def _figures(ran: pd.DataFrame) -> dict[str, float]:
    speedup = ran["speedup"].to_numpy(dtype=np.float64)
    bias = ran["bias"].to_numpy(dtype=np.float64)
    return {
        "harmonic_speedup": float(speedup.size / np.sum(1.0 / speedup)),
        "least_speedup": float(speedup.min()),
        "mean_error": float(ran["mean_error"].mean()),
        "worst_mean_error": float(ran["mean_error"].max()),
        "worst_error": float(ran["max_error"].max()),
        "worst_bias": float(bias[np.argmax(np.abs(bias))]),
        "least_within_epsilon": float(ran["within_epsilon"].min()),
        # Methods without an interval have none to be the least of.
        "least_interval_coverage": float(ran["interval_coverage"].astype("float64").min()),
    }
