"""Estimates and intervals from strata drawn in proportion to size, against simulation of their draws."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from stemroot_spark.errors import DataError
from stemroot_spark.estimators import combine, summarise_kernel

IntArray = npt.NDArray[np.int64]
SEED = 31


def _systematic(x: IntArray, m: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
    order = rng.permutation(x.size)
    ends = np.cumsum(x[order])
    points = (np.arange(m) + rng.random()) * (ends[-1] / m)
    drawn: npt.NDArray[np.intp] = order[np.searchsorted(ends, points, side="right")]
    return drawn


def _strata(parts: list[IntArray], samples: list[int], designs: list[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "stratum_id": np.arange(len(parts)),
            "n_population": [x.size for x in parts],
            "n_samples": samples,
            "mean_ns": [x.mean() for x in parts],
            "stddev_ns": [x.std(ddof=1) for x in parts],
            "design": designs,
        }
    )


def test_estimates_from_pps_strata_are_unbiased_and_their_intervals_cover() -> None:
    """One kernel of a PPS and an expansion stratum, y = 2 x with noise of 10 %, drawn anew each time."""
    print(f"seed {SEED}")
    rng, noise, draws = np.random.default_rng(SEED), 0.1, 500
    true = np.exp(12 + 0.5 * rng.standard_normal(600))
    parts = [np.rint(true[true < np.quantile(true, 0.7)]), np.rint(true[true >= np.quantile(true, 0.7)])]
    strata = _strata([p.astype(np.int64) for p in parts], [8, 12], ["expansion", "pps"])
    errors, hits = [], []
    for _ in range(draws):
        y = [2.0 * p * (1 + noise * rng.standard_normal(p.size)) for p in parts]
        chosen = [rng.permutation(parts[0].size)[:8], _systematic(parts[1].astype(np.int64), 12, rng)]
        drawn = pd.DataFrame(
            {
                "stratum_id": np.repeat([0, 1], [8, 12]),
                "duration_ns": np.concatenate([p[c] for p, c in zip(parts, chosen, strict=True)]),
                "value": np.concatenate([v[c] for v, c in zip(y, chosen, strict=True)]),
            }
        )
        summary = summarise_kernel(drawn, strata)
        total = combine(pd.DataFrame([summary._asdict()]), noise, 0.95).total
        truth = sum(v.sum() for v in y)
        errors.append(total.estimate / truth - 1)
        hits.append(total.ci_low <= truth <= total.ci_high)
    error, share = np.array(errors), float(np.mean(hits))
    mc = np.sqrt(0.05 * 0.95 / draws)
    print(f"bias {error.mean():.5f} +- {error.std() / np.sqrt(draws):.5f}, coverage {share:.3f} +- {mc:.3f}")
    assert abs(error.mean()) < 4 * error.std() / np.sqrt(draws)
    assert 0.95 - 3 * mc <= share <= 0.99


def test_a_pps_estimate_is_exact_where_the_simulator_is_proportional_to_the_profile() -> None:
    x = np.array([3_000, 5_000, 8_000, 11_000, 20_000])
    chosen = _systematic(x, 2, np.random.default_rng(SEED))
    drawn = pd.DataFrame({"stratum_id": 0, "duration_ns": x[chosen], "value": 7.0 * x[chosen]})
    summary = summarise_kernel(drawn, _strata([x], [2], ["pps"]))
    assert summary.estimate == pytest.approx(7.0 * x.sum(), rel=1e-12)
    assert summary.profile_variance == 0.0
    assert summary.noise_squared == pytest.approx(0.0, abs=1e-20)
    assert summary.noise_weight == pytest.approx(x.sum() ** 2 / 2 - (x**2).sum(), rel=1e-12)


def test_an_unknown_design_is_refused() -> None:
    x = np.array([3_000, 5_000])
    drawn = pd.DataFrame({"stratum_id": [0], "duration_ns": [3_000], "value": [1.0]})
    with pytest.raises(DataError, match="known are expansion and pps"):
        summarise_kernel(drawn, _strata([x], [1], ["ratio"]))
