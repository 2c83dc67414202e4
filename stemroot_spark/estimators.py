"""From simulated launches back to the time of the workload, with confidence intervals.

The point estimate uses simulated values alone: Y^ = sum_h N_h ybar_h (Cochran, Sampling Techniques, chapter 5).
A stratum whose launches were drawn with probabilities m x / X (PPS) contributes X / m sum y / x in place of N ybar
(Hansen and Hurwitz 1943; Horvitz and Thompson 1952). The interval carries the profile's variance over to the
simulator's unit with one factor per kernel and adds the noise of single launches, whose spread is shrunk towards an
assumed one, `launch_noise`, worth three degrees of freedom, since most kernels have very few draws.

`summarise_kernel` condenses one kernel (a map), `combine` pools kernels and makes the intervals (a reduce). In
all results a float that cannot be computed is NaN, which stands for null, and its row says why in `reason`.
"""

from __future__ import annotations

from math import fsum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.special import stdtrit

from stemroot_spark.allocation import planning_variance
from stemroot_spark.errors import DataError

FloatArray = npt.NDArray[np.float64]

PRIOR_DEGREES_OF_FREEDOM = 3.0

DRAW_COLUMNS = ("stratum_id", "duration_ns", "value")
STRATUM_COLUMNS = ("stratum_id", "n_population", "n_samples", "mean_ns", "stddev_ns")
DESIGN_COLUMN = "design"
EXPANSION, PPS = "expansion", "pps"


class KernelSummary(NamedTuple):
    """What the draws of one kernel say; int, float, bool and str fields, of stable types.

    estimate: Y^, in the unit of the values; NaN unless every stratum has an answer. answered_estimate: the sum
    over the strata that have one. factor: f_k = sum w y / sum w x, unit of the values per ns.
    noise_squared: phi_k^2, variance of y / (f x) over the draws, NaN below two answers; degrees_of_freedom: its
    n_k - 1, at least 0. profile_variance: V_x,k of the answered sample, ns^2, to which a PPS stratum adds nothing.
    noise_weight: what phi^2 is multiplied with, sum_h N_h sum x^2 (1/m_h - 1/N_h), of a PPS stratum
    X^2 / m_h - sum x^2 (Godambe and Joshi 1965), ns^2. Both are NaN where the estimate is.
    is_whole: every launch was simulated. unanswered: strata with drawn launches and no usable result;
    unsampled: strata the plan gave no sample; their shares are of the kernel's profiled time.
    status: ok or incomplete, with a reason (None for ok).
    """

    estimate: float
    answered_estimate: float
    factor: float
    noise_squared: float
    degrees_of_freedom: int
    n_population: int
    n_drawn: int
    n_answered: int
    profile_total_ns: int
    profile_variance: float
    noise_weight: float
    is_whole: bool
    n_strata_unanswered: int
    unanswered_time_share: float
    n_strata_unsampled: int
    unsampled_time_share: float
    status: str
    reason: str | None


class Estimate(NamedTuple):
    """One row of estimates: estimate, standard error and interval in the unit of the values.

    degrees_of_freedom is that of the t quantile, NaN where the interval has no width because all was
    simulated. prior_share: share of the variance that rests on the assumed launch noise. n_samples counts
    draws with a usable result. profile_total_ns: profiled time of the same launches. measured_noise: relative
    spread of result / profile over the draws (phi), NaN without two draws of a kernel. status: ok, no_variance
    or incomplete, with a reason (None for ok).
    """

    estimate: float
    standard_error: float
    ci_low: float
    ci_high: float
    degrees_of_freedom: float
    prior_share: float
    n_samples: int
    n_population: int
    profile_total_ns: int
    measured_noise: float
    status: str
    reason: str | None


class Combined(NamedTuple):
    """Estimates per kernel (key columns of the summaries, then the fields of Estimate) and of the total."""

    kernels: pd.DataFrame
    total: Estimate


def summarise_kernel(draws: pd.DataFrame, strata: pd.DataFrame) -> KernelSummary:
    """Condenses the draws of one kernel to what the estimate and its interval need.

    draws: a row per drawn launch with DRAW_COLUMNS: duration_ns the profiled x, value the simulated y in any
    unit, null where the result is missing or failed. strata: a row per stratum with STRATUM_COLUMNS and, unless
    all are expansion strata, DESIGN_COLUMN (null stands for expansion). A stratum counts with the m_h launches that
    were answered. DataError for missing columns, draws of an unknown stratum, an unknown design, more answers than
    launches, or values that are not positive.
    """
    strata = _checked_strata(strata)
    x, y, position = _checked_draws(draws, strata)
    n = strata["n_population"].to_numpy(dtype=np.int64)
    mean, stddev = (strata[name].to_numpy(dtype=np.float64) for name in ("mean_ns", "stddev_ns"))
    planned = np.minimum(strata["n_samples"].to_numpy(dtype=np.int64), n)

    answered = np.isfinite(y)
    n_drawn = len(y)
    x, y, position = x[answered], y[answered], position[answered]
    m = np.bincount(position, minlength=n.size)
    if (m > n).any():
        h = int(np.argmax(m > n))
        name = strata["stratum_id"].iloc[h]
        raise DataError(f"stratum {name}: {m[h]} results for {n[h]} launches, drawn or joined twice?")
    is_pps = _is_pps(strata)
    # The weight of a draw: N / m, or 1 / pi = X / (m x).
    weight = (n / np.maximum(m, 1))[position] * np.where(is_pps[position], mean[position] / x, 1.0)
    # fsum, here and for totals: the same answer whatever the order of the rows.
    weighted_sum = fsum(weight * y) if len(y) else np.nan
    factor = weighted_sum / fsum(weight * x) if len(y) else np.nan
    noise_squared = fsum((y / x / factor - 1.0) ** 2) / (len(y) - 1) if len(y) > 1 else np.nan

    time = n * mean
    unsampled = (m == 0) & (planned == 0)
    unanswered = (m == 0) & (planned > 0)
    all_answered = bool((m > 0).all())
    squares = (n - 1) * stddev**2 + n * mean**2
    reason = _missing_reason(int(planned.sum()), int(m.sum()), unanswered, unsampled, time)
    return KernelSummary(
        estimate=weighted_sum if all_answered else np.nan,
        answered_estimate=weighted_sum,
        factor=factor,
        noise_squared=noise_squared,
        degrees_of_freedom=max(len(y) - 1, 0),
        n_population=int(n.sum()),
        n_drawn=n_drawn,
        n_answered=len(y),
        profile_total_ns=round(float(time.sum())),
        profile_variance=planning_variance(n, np.where(is_pps, 0.0, stddev), m) if all_answered else np.nan,
        noise_weight=_noise_weight(n, m, time, squares, is_pps) if all_answered else np.nan,
        is_whole=bool((m == n).all()),
        n_strata_unanswered=int(unanswered.sum()),
        unanswered_time_share=float(time[unanswered].sum() / time.sum()),
        n_strata_unsampled=int(unsampled.sum()),
        unsampled_time_share=float(time[unsampled].sum() / time.sum()),
        status="incomplete" if reason else "ok",
        reason=reason,
    )


def _is_pps(strata: pd.DataFrame) -> npt.NDArray[np.bool_]:
    if DESIGN_COLUMN not in strata.columns:
        return np.zeros(len(strata), dtype=np.bool_)
    design = strata[DESIGN_COLUMN].fillna(EXPANSION)
    if not design.isin((EXPANSION, PPS)).all():
        raise DataError(f"strata of design {', '.join(sorted(set(design)))}: known are {EXPANSION} and {PPS}")
    is_pps: npt.NDArray[np.bool_] = (design == PPS).to_numpy(dtype=np.bool_)
    return is_pps


def _noise_weight(
    n: npt.NDArray[np.int64],
    m: npt.NDArray[np.int64],
    time: FloatArray,
    squares: FloatArray,
    is_pps: npt.NDArray[np.bool_],
) -> float:
    # Written with N - m so that a stratum simulated whole adds exactly 0.
    expansion = squares * (n - m) / m
    pps = np.where(m == n, 0.0, np.maximum(time**2 / m - squares, 0.0))
    return float(np.sum(np.where(is_pps, pps, expansion)))


def combine(
    summaries: pd.DataFrame, launch_noise: float, confidence: float, *, pooled_noise: float = np.nan
) -> Combined:
    """Intervals of all kernels and of their total, at the confidence, for an assumed launch noise phi0.

    summaries: a row per kernel with the fields of KernelSummary; other columns are keys and kept. Per kernel
    phi^2 = (3 phi0^2 + df_k phi_k^2) / (3 + df_k); a kernel with one draw takes the spread pooled over all
    kernels where that exceeds phi0, or pooled_noise where it is given: what a larger set of draws shows, of which these
    kernels are a part. V^_k = f_k^2 (V_x,k + phi^2 noise_weight), half width t sqrt(V^_k) with
    3 + df_k degrees of freedom; for the total V^ = sum V^_k with nu = V^^2 / sum(V^_k^2 / (3 + df_k))
    (Satterthwaite 1946). A kernel with one draw of several launches is `no_variance`: it has no interval but
    counts in the total. The total is null only where a kernel's estimate is. Compare `measured_noise` of the
    total with launch_noise: if it is larger, the interval covers less than it says. DataError for missing
    columns, no kernels, or parameters outside their domain.
    """
    _check_summaries(summaries, launch_noise, confidence)
    columns = {name: summaries[name].to_numpy(dtype=np.float64) for name in _NUMERIC_FIELDS}
    df = columns["degrees_of_freedom"]
    measured = np.where(df > 0, columns["noise_squared"], 0.0)
    own_pooled = fsum(df * measured) / float(df.sum()) if df.sum() > 0 else np.nan
    pooled = own_pooled if np.isnan(pooled_noise) else pooled_noise**2
    prior = PRIOR_DEGREES_OF_FREEDOM
    noise_squared = shrunk_noise_squared(measured, df, launch_noise, pooled)
    from_prior = np.where(df > 0, prior * launch_noise**2 / (prior + df), noise_squared)

    scale = columns["factor"] ** 2
    variance = scale * (columns["profile_variance"] + noise_squared * columns["noise_weight"])
    prior_variance = scale * from_prior * columns["noise_weight"]
    single = (columns["n_answered"] == 1) & (columns["n_population"] > 1)
    own_variance = np.where(single, np.nan, variance)

    estimate = columns["estimate"]
    half_width = half_width_of(own_variance, prior + df, confidence)
    kernels = summaries.drop(columns=list(KernelSummary._fields)).reset_index(drop=True)
    kernels = kernels.assign(
        estimate=estimate,
        standard_error=np.sqrt(own_variance),
        ci_low=estimate - half_width,
        ci_high=estimate + half_width,
        degrees_of_freedom=np.where(own_variance > 0, prior + df, np.nan),
        prior_share=_share(np.where(single, np.nan, prior_variance), own_variance),
        n_samples=columns["n_answered"].astype(np.int64),
        n_population=columns["n_population"].astype(np.int64),
        profile_total_ns=summaries["profile_total_ns"].to_numpy(dtype=np.int64),
        measured_noise=np.sqrt(columns["noise_squared"]),
    )
    kernels = kernels.assign(**_kernel_status(summaries, single))
    total = _total(kernels, variance, prior_variance, df, np.sqrt(own_pooled), confidence)
    return Combined(kernels, total)


def shrunk_noise_squared(
    measured: FloatArray, df: FloatArray, launch_noise: float, pooled: FloatArray | float
) -> FloatArray:
    """phi^2 of kernels, shape (..., kernels): phi_k^2 measured by df draws drawn towards the assumed launch noise.

    Kernels with df = 0 have pooled where it exceeds the assumed one; NaN for no pooled one.
    """
    assumed = launch_noise**2
    shrunk = (PRIOR_DEGREES_OF_FREEDOM * assumed + df * measured) / (PRIOR_DEGREES_OF_FREEDOM + df)
    noise_squared: FloatArray = np.where(df > 0, shrunk, np.fmax(assumed, pooled))
    return noise_squared


def half_width_of(variance: FloatArray, df: FloatArray, confidence: float) -> FloatArray:
    """t sqrt(V) for arrays of one shape, exactly 0 without variance (where the degrees of freedom may be undefined)."""
    quantile: FloatArray = np.asarray(stdtrit(df, (1.0 + confidence) / 2.0), dtype=np.float64)
    return np.where(variance == 0.0, 0.0, quantile * np.sqrt(variance))


_NUMERIC_FIELDS = (
    "estimate",
    "factor",
    "noise_squared",
    "degrees_of_freedom",
    "n_population",
    "n_answered",
    "profile_variance",
    "noise_weight",
)


def _total(
    kernels: pd.DataFrame,
    variance: FloatArray,
    prior_variance: FloatArray,
    df: FloatArray,
    measured_noise: float,
    confidence: float,
) -> Estimate:
    estimate = fsum(kernels["estimate"])  # NaN as soon as one kernel's is
    total_variance = np.array([fsum(variance)])
    nu = np.array([np.nan])
    if total_variance[0] > 0:
        nu = total_variance**2 / fsum(variance**2 / (PRIOR_DEGREES_OF_FREEDOM + df))
    half_width = float(half_width_of(total_variance, nu, confidence)[0])
    absent = int(kernels["estimate"].isna().sum())
    incomplete = int((kernels["status"] == "incomplete").sum())
    reason = f"{incomplete} of {len(kernels)} kernels lack results" if incomplete else None
    if absent:
        share = (
            kernels.loc[kernels["estimate"].isna(), "profile_total_ns"].sum()
            / kernels["profile_total_ns"].sum()
        )
        reason = (
            f"{reason}, {absent} of them so that they have no estimate ({share:.1%} of the profiled time)"
        )
    return Estimate(
        estimate=estimate,
        standard_error=float(np.sqrt(total_variance[0])),
        ci_low=estimate - half_width,
        ci_high=estimate + half_width,
        degrees_of_freedom=float(nu[0]),
        prior_share=float(_share(np.array([fsum(prior_variance)]), total_variance)[0]),
        n_samples=int(kernels["n_samples"].sum()),
        n_population=int(kernels["n_population"].sum()),
        profile_total_ns=int(kernels["profile_total_ns"].sum()),
        measured_noise=float(measured_noise),
        status="incomplete" if incomplete else "ok",
        reason=reason,
    )


def _share(part: FloatArray, whole: FloatArray) -> FloatArray:
    return np.where(whole == 0.0, 0.0, part / np.where(whole == 0.0, 1.0, whole))


def _kernel_status(summaries: pd.DataFrame, single: npt.NDArray[np.bool_]) -> dict[str, pd.Series[Any]]:
    statuses: list[str] = []
    reasons: list[str | None] = []
    rows = zip(summaries["status"], summaries["reason"], summaries["n_population"], single, strict=True)
    for status, reason, n, alone in rows:
        no_variance = f"one draw of {n} launches tells no variance" if alone else ""
        missing = reason if isinstance(reason, str) else ""  # null comes back from tables as NaN or None
        reasons.append("; ".join(filter(None, (missing, no_variance))) or None)
        statuses.append("no_variance" if alone and status == "ok" else str(status))
    return {"status": pd.Series(statuses, dtype=object), "reason": pd.Series(reasons, dtype=object)}


def _missing_reason(
    planned: int,
    answered: int,
    unanswered: npt.NDArray[np.bool_],
    unsampled: npt.NDArray[np.bool_],
    time: FloatArray,
) -> str | None:
    parts = []
    if answered < planned:
        parts.append(f"{planned - answered} of {planned} planned launches have no usable result")
    for strata, what in ((unanswered, "have no result at all"), (unsampled, "were given no sample")):
        if strata.any():
            share = float(time[strata].sum() / time.sum())
            parts.append(f"{strata.sum()} of {strata.size} strata {what} ({share:.1%} of the kernel's time)")
    return "; ".join(parts) or None


def _require_columns(frame: pd.DataFrame, needed: tuple[str, ...], what: str) -> None:
    missing = [name for name in needed if name not in frame.columns]
    if missing:
        raise DataError(
            f"{what} without column(s) {', '.join(missing)}; present: {', '.join(map(str, frame.columns))}"
        )


def _checked_strata(strata: pd.DataFrame) -> pd.DataFrame:
    _require_columns(strata, STRATUM_COLUMNS, "strata")
    good = (strata["n_population"] >= 1) & (strata["mean_ns"] > 0) & (strata["stddev_ns"] >= 0)
    if strata.empty or not good.all() or strata["stratum_id"].duplicated().any():
        raise DataError(
            "strata of a kernel must be there, be listed once, and have launches, a positive mean_ns and a "
            f"stddev_ns; got\n{strata[list(STRATUM_COLUMNS)].head()}"
        )
    return strata


def _checked_draws(
    draws: pd.DataFrame, strata: pd.DataFrame
) -> tuple[FloatArray, FloatArray, npt.NDArray[np.intp]]:
    """Durations, values (NaN where missing) and positions of the strata, one per drawn launch."""
    _require_columns(draws, DRAW_COLUMNS, "draws")
    position = pd.Index(strata["stratum_id"]).get_indexer(pd.Index(draws["stratum_id"]))
    if (position < 0).any():
        unknown = draws["stratum_id"].to_numpy()[position < 0][0]
        raise DataError(
            f"a draw of stratum {unknown}, which the plan does not have: results of another plan?"
        )
    x, y = (draws[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in ("duration_ns", "value"))
    bad = ~(x > 0) | (y <= 0) | np.isinf(y)
    if bad.any():
        k = int(np.argmax(bad))
        raise DataError(f"a draw with duration_ns {x[k]} and value {y[k]}: both must be positive and finite")
    return x, y, position


def _check_summaries(summaries: pd.DataFrame, launch_noise: float, confidence: float) -> None:
    _require_columns(summaries, KernelSummary._fields, "kernel summaries")
    if summaries.empty:
        raise DataError("no kernel summaries: the plan has no kernels to reconstruct")
    if not 0.0 <= launch_noise < np.inf:
        raise DataError(f"launch_noise {launch_noise} must be at least 0, for example 0.03")
    if not 0.0 < confidence < 1.0:
        raise DataError(f"confidence {confidence} is not between 0 and 1: give for example 0.95")
