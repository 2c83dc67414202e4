"""Estimates against formulas written out longhand."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from stemroot_spark.errors import DataError
from stemroot_spark.estimators import Combined, Estimate, KernelSummary, combine, summarise_kernel
from tests.drawn_kernels import Kernel, made_kernel

NOISE = 0.03


def _combined(*summaries: KernelSummary, noise: float = NOISE, confidence: float = 0.95) -> Combined:
    rows = [{"kernel_id": k, **s._asdict()} for k, s in enumerate(summaries)]
    return combine(pd.DataFrame(rows), noise, confidence)


def _summary(kernel: Kernel, seed: int = 1, factor: float = 1.7, noise: float = NOISE) -> KernelSummary:
    rng = np.random.default_rng(seed)
    y = [x * factor * rng.lognormal(0, noise, x.size) for x in kernel.x]
    return summarise_kernel(kernel.draw(y, rng), kernel.strata)


def _strata(*rows: tuple[int, int, float, float]) -> pd.DataFrame:
    columns = ["n_population", "n_samples", "mean_ns", "stddev_ns"]
    return pd.DataFrame(list(rows), columns=columns).assign(stratum_id=range(len(rows)))


def _draws(*rows: tuple[int, float, float | None]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=["stratum_id", "duration_ns", "value"])


STRATA = _strata((10, 2, 100.0, 5.0), (3, 3, 500.0, 20.0))
DRAWS = _draws((0, 98, 50), (0, 103, 52), (1, 480, 240), (1, 500, 251), (1, 520, 262))


def test_summary_follows_its_formulas_written_out() -> None:
    s = summarise_kernel(DRAWS, STRATA)
    estimate = 10 * (50 + 52) / 2 + (240 + 251 + 262)
    factor = estimate / (10 * (98 + 103) / 2 + (480 + 500 + 520))
    ratios = np.array([50 / 98, 52 / 103, 240 / 480, 251 / 500, 262 / 520])
    assert s.estimate == s.answered_estimate == pytest.approx(estimate)
    assert s.factor == pytest.approx(factor)
    assert s.noise_squared == pytest.approx(((ratios / factor - 1) ** 2).sum() / 4)
    assert s.profile_variance == pytest.approx(10**2 * 5**2 * (1 / 2 - 1 / 10))
    assert s.noise_weight == pytest.approx(10 * (9 * 25 + 10 * 100**2) * (1 / 2 - 1 / 10))
    assert (s.degrees_of_freedom, s.n_drawn, s.n_answered, s.n_population) == (4, 5, 5, 13)
    assert (s.profile_total_ns, s.is_whole, s.status, s.reason) == (2_500, False, "ok", None)


def test_intervals_follow_their_formulas_written_out() -> None:
    summaries = [_summary(made_kernel(k, (40, 9), (3 + k, 2)), seed=k) for k in range(3)]
    lone = _summary(made_kernel(9, (30,), (1,)))
    result = _combined(*summaries, lone, confidence=0.9)

    variances, priors, dfs = [], [], []
    for s in summaries:
        df = s.n_answered - 1
        phi2 = (3 * NOISE**2 + df * s.noise_squared) / (3 + df)
        variances.append(s.factor**2 * (s.profile_variance + phi2 * s.noise_weight))
        priors.append(s.factor**2 * 3 * NOISE**2 / (3 + df) * s.noise_weight)
        dfs.append(3 + df)
    inflation = max(
        1,
        sum(s.degrees_of_freedom * s.noise_squared for s in summaries)
        / (NOISE**2 * sum(s.degrees_of_freedom for s in summaries)),
    )
    priors.append(lone.factor**2 * inflation * NOISE**2 * lone.noise_weight)
    variances.append(lone.factor**2 * lone.profile_variance + priors[-1])
    dfs.append(3)

    for k in range(3):
        row = result.kernels.iloc[k]
        half = stats.t.ppf(0.95, dfs[k]) * variances[k] ** 0.5
        assert row.standard_error == pytest.approx(variances[k] ** 0.5)
        assert (row.ci_low, row.ci_high) == pytest.approx((row.estimate - half, row.estimate + half))
        assert row.degrees_of_freedom == dfs[k]
        assert row.prior_share == pytest.approx(priors[k] / variances[k])
        assert row.measured_noise == pytest.approx(summaries[k].noise_squared ** 0.5)
    total = result.total
    nu = sum(variances) ** 2 / sum(v**2 / d for v, d in zip(variances, dfs, strict=True))
    assert total.estimate == pytest.approx(sum(s.estimate for s in (*summaries, lone)))
    assert total.degrees_of_freedom == pytest.approx(nu)
    assert total.standard_error == pytest.approx(sum(variances) ** 0.5)
    assert total.ci_high - total.estimate == pytest.approx(stats.t.ppf(0.95, nu) * sum(variances) ** 0.5)
    assert total.prior_share == pytest.approx(sum(priors) / sum(variances))
    assert total.n_population == 3 * 49 + 30


def test_measured_noise_is_pooled_by_degrees_of_freedom() -> None:
    summaries = [_summary(made_kernel(k, (400,), (60,)), seed=k, noise=0.2) for k in range(3)]
    total = _combined(*summaries).total
    weights = [s.degrees_of_freedom for s in summaries]
    pooled = np.average([s.noise_squared for s in summaries], weights=weights) ** 0.5
    assert total.measured_noise == pytest.approx(pooled)
    assert total.measured_noise == pytest.approx(0.2, rel=0.2)


def test_kernel_with_one_draw_takes_the_pooled_spread_only_when_it_is_larger() -> None:
    lone = _summary(made_kernel(9, (30,), (1,)))
    quiet = _summary(made_kernel(1, (400,), (60,)), noise=0.001)
    loud = _summary(made_kernel(1, (400,), (60,)), noise=0.3)
    alone = _combined(lone).total.standard_error

    def lone_error(other: KernelSummary) -> float:
        result = _combined(lone, other)
        other_error = float(result.kernels["standard_error"][1])
        return float(np.sqrt(result.total.standard_error**2 - other_error**2))

    assert lone_error(quiet) == pytest.approx(alone)
    expected = lone.factor**2 * (lone.profile_variance + loud.noise_squared * lone.noise_weight)
    assert lone_error(loud) == pytest.approx(expected**0.5)


def test_value_in_another_unit_scales_everything_but_the_counts() -> None:
    in_ns, in_cycles = (
        _combined(summarise_kernel(DRAWS.assign(value=DRAWS.value * unit), STRATA)).total
        for unit in (1.0, 1.41)
    )
    for name in ("estimate", "standard_error", "ci_low", "ci_high"):
        assert getattr(in_cycles, name) == pytest.approx(1.41 * getattr(in_ns, name))
    assert in_cycles.measured_noise == pytest.approx(in_ns.measured_noise)
    assert in_cycles.degrees_of_freedom == pytest.approx(in_ns.degrees_of_freedom)


def test_kernel_simulated_whole_has_no_width() -> None:
    whole = summarise_kernel(DRAWS.iloc[2:].assign(stratum_id=0), STRATA.iloc[1:].assign(stratum_id=0))
    assert whole.is_whole
    result = _combined(whole)
    for row in (result.kernels.iloc[0], result.total):
        assert row.ci_low == row.ci_high == row.estimate == 753.0
        assert (row.standard_error, row.prior_share, row.status) == (0.0, 0.0, "ok")
        assert np.isnan(row.degrees_of_freedom)


def test_one_draw_of_several_launches_has_no_variance_but_counts_in_the_total() -> None:
    lone = summarise_kernel(_draws((0, 100, 70)), _strata((40, 1, 100.0, 3.0)))
    result = _combined(lone)
    row = result.kernels.iloc[0]
    assert row.status == "no_variance"
    assert "one draw of 40 launches" in row.reason
    assert row.estimate == 2_800.0
    assert row[["standard_error", "ci_low", "ci_high", "degrees_of_freedom", "prior_share"]].isna().all()
    assert result.total.status == "ok"
    assert result.total.ci_low < 2_800.0 < result.total.ci_high
    assert 0.5 < result.total.prior_share < 1.0
    assert np.isnan(result.total.measured_noise)


def test_single_launch_is_known_exactly() -> None:
    only = summarise_kernel(_draws((0, 100, 70)), _strata((1, 1, 100.0, 0.0)))
    row = _combined(only).kernels.iloc[0]
    assert (row.status, row.ci_low, row.ci_high) == ("ok", 70.0, 70.0)


def test_missing_results_shrink_the_stratum_to_what_was_answered() -> None:
    draws = DRAWS.copy()
    draws.loc[4, "value"] = np.nan
    s = summarise_kernel(draws, STRATA)
    assert (s.n_drawn, s.n_answered, s.status) == (5, 4, "incomplete")
    assert s.reason == "1 of 5 planned launches have no usable result"
    assert s.estimate == pytest.approx(10 * 51 + 3 * (240 + 251) / 2)
    assert s.profile_variance == pytest.approx(1_000 + 9 * 400 * (1 / 2 - 1 / 3))
    # A draw that is not even listed is missing all the same.
    assert summarise_kernel(draws.iloc[:4], STRATA) == s._replace(n_drawn=4)
    result = _combined(s)
    assert result.kernels.iloc[0].status == result.total.status == "incomplete"
    assert result.total.reason == "1 of 1 kernels lack results"
    assert result.total.ci_low < result.total.estimate < result.total.ci_high


def test_stratum_without_any_answer_makes_estimates_null_with_a_reason() -> None:
    broken = summarise_kernel(DRAWS.assign(value=[np.nan, np.nan, 240, 251, 262]), STRATA)
    assert np.isnan(broken.estimate)
    assert broken.answered_estimate == 753.0
    assert broken.n_strata_unanswered == 1
    assert broken.unanswered_time_share == pytest.approx(0.4)
    assert broken.reason is not None
    assert "1 of 2 strata have no result at all (40.0% of the kernel's time)" in broken.reason
    result = _combined(broken, summarise_kernel(DRAWS, STRATA))
    assert result.kernels["estimate"].isna().tolist() == [True, False]
    total = result.total
    assert np.isnan([total.estimate, total.standard_error, total.ci_low, total.ci_high]).all()
    assert total.status == "incomplete"
    assert total.reason is not None
    assert "1 of them so that they have no estimate (50.0% of the profiled time)" in total.reason


def test_kernel_without_any_draw_is_null_and_not_zero() -> None:
    empty = summarise_kernel(DRAWS.iloc[:0], STRATA)
    assert np.isnan([empty.estimate, empty.answered_estimate, empty.factor, empty.noise_squared]).all()
    assert (empty.degrees_of_freedom, empty.n_strata_unanswered) == (0, 2)
    row = _combined(empty).kernels.iloc[0]
    assert np.isnan(row.estimate)
    assert row.status == "incomplete"


def test_stratum_the_plan_left_out_is_told_apart_from_missing_results() -> None:
    strata = _strata((10, 2, 100.0, 5.0), (30, 0, 500.0, 0.0))
    s = summarise_kernel(DRAWS.iloc[:2], strata)
    assert (s.n_strata_unsampled, s.n_strata_unanswered) == (1, 0)
    assert s.unsampled_time_share == pytest.approx(15 / 16)
    assert np.isnan(s.estimate)
    assert s.answered_estimate == pytest.approx(510.0)
    assert s.reason == "1 of 2 strata were given no sample (93.8% of the kernel's time)"


def test_samples_planned_beyond_the_population_are_not_missed() -> None:
    s = summarise_kernel(DRAWS.iloc[2:].assign(stratum_id=0), _strata((3, 90, 500.0, 20.0)))
    assert (s.status, s.is_whole) == ("ok", True)


def test_order_of_rows_does_not_change_a_bit() -> None:
    kernel = made_kernel(4, (60, 30, 5), (9, 7, 5))
    draws = kernel.draw([x * 1.3 for x in kernel.x], np.random.default_rng(0))
    shuffled = draws.sample(frac=1, random_state=1)
    first = summarise_kernel(draws, kernel.strata)
    assert summarise_kernel(shuffled, kernel.strata) == first
    others = [_summary(made_kernel(k, (40, 9), (3, 2)), seed=k) for k in range(6)]
    assert _combined(first, *others).total == _combined(*reversed(others), first).total


def test_frame_of_kernels_keeps_keys_and_has_stable_types() -> None:
    complete = _combined(summarise_kernel(DRAWS, STRATA)).kernels
    broken = _combined(summarise_kernel(DRAWS.iloc[:0], STRATA)).kernels
    for frame in (complete, broken):
        assert frame.columns.tolist() == ["kernel_id", *Estimate._fields]
        assert frame.dtypes.astype(str).to_dict() == {
            "kernel_id": "int64",
            **dict.fromkeys(Estimate._fields[:6], "float64"),
            **dict.fromkeys(("n_samples", "n_population", "profile_total_ns"), "int64"),
            "measured_noise": "float64",
            "status": "object",
            "reason": "object",
        }
    assert complete["reason"].tolist() == [None]


def test_summaries_survive_a_table_that_returns_null_as_nan() -> None:
    rows = pd.DataFrame([summarise_kernel(DRAWS, STRATA)._asdict()]).assign(reason=np.nan)
    assert combine(rows, NOISE, 0.95).kernels["reason"].tolist() == [None]


@pytest.mark.parametrize(
    ("draws", "strata", "message"),
    [
        (DRAWS.drop(columns="value"), STRATA, r"draws without column\(s\) value"),
        (DRAWS, STRATA.drop(columns="mean_ns"), r"strata without column\(s\) mean_ns"),
        (DRAWS.assign(stratum_id=7), STRATA, "stratum 7"),
        (DRAWS.assign(value=0.0), STRATA, "value 0.0"),
        (DRAWS.assign(value=np.inf), STRATA, "value inf"),
        (DRAWS.assign(duration_ns=-1), STRATA, "duration_ns -1"),
        (DRAWS.assign(stratum_id=1), STRATA, "5 results for 3 launches"),
        (DRAWS, STRATA.assign(stratum_id=0), "listed once"),
        (DRAWS, STRATA.iloc[:0], "must be there"),
    ],
)
def test_contradicting_rows_are_refused(draws: pd.DataFrame, strata: pd.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=message):
        summarise_kernel(draws, strata)


def test_parameters_outside_the_domain_are_refused() -> None:
    rows = pd.DataFrame([summarise_kernel(DRAWS, STRATA)._asdict()])
    with pytest.raises(DataError, match="launch_noise"):
        combine(rows, -0.1, 0.95)
    with pytest.raises(DataError, match="confidence"):
        combine(rows, NOISE, 1.0)
    with pytest.raises(DataError, match="no kernel summaries"):
        combine(rows.iloc[:0], NOISE, 0.95)
    with pytest.raises(DataError, match=r"column\(s\) factor"):
        combine(rows.drop(columns="factor"), NOISE, 0.95)


def test_without_assumed_noise_only_the_measured_one_counts() -> None:
    lone = summarise_kernel(_draws((0, 100, 70)), _strata((40, 1, 100.0, 0.0)))
    result = _combined(lone, noise=0.0)
    assert result.total.standard_error == 0.0
    several = _summary(made_kernel(1, (40,), (10,)))
    row = _combined(several, noise=0.0).kernels.iloc[0]
    assert row.prior_share == 0.0
    assert row.standard_error > 0.0
