"""Hysteresis of ROOT's splits, and the bootstrap that tells how stable its cuts are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from stemroot_spark.config import load_config
from stemroot_spark.errors import DataError, UsageError
from stemroot_spark.histogram import Cells, cells_from_histogram, histogram_of
from stemroot_spark.root import split_kernel
from stemroot_spark.root_planning import split_frame
from stemroot_spark.stability import SAME_CUT_SHARE, cut_stability, replicate_cells

SEED = 5
OPTIONS: dict[str, Any] = {"epsilon": 0.05, "confidence": 0.95, "paper": False}


def _cells(durations: npt.NDArray[Any]) -> Cells:
    return cells_from_histogram(histogram_of(np.maximum(durations, 1).astype(np.int64)))


def _lognormal(size: int = 2_000) -> npt.NDArray[np.float64]:
    return 1e5 * np.exp(0.6 * np.random.default_rng(SEED).standard_normal(size))


@pytest.mark.parametrize("paper", [False, True])
def test_hysteresis_keeps_only_splits_that_save_the_margin(paper: bool) -> None:
    cells = _cells(_lognormal())
    sizes = []
    for hysteresis in (0.0, 0.1, 0.3, 0.6):
        split = split_kernel(cells, epsilon=0.05, confidence=0.95, paper=paper, hysteresis=hysteresis)
        for decision in split.decisions:
            if decision.cost_after is not None:
                enough = decision.cost_after <= decision.cost_before * (1 - hysteresis)
                assert decision.accepted == enough
        sizes.append(len(split.leaves))
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


@pytest.mark.parametrize("hysteresis", [-0.1, 1.0])
def test_hysteresis_outside_its_domain_is_refused(hysteresis: float) -> None:
    with pytest.raises(DataError, match="hysteresis"):
        split_kernel(_cells(_lognormal(50)), **OPTIONS, hysteresis=hysteresis)
    with pytest.raises(UsageError, match=r"plan\.split_hysteresis"):
        load_config(overrides=[f"plan.split_hysteresis={hysteresis}"])


def _stability(durations: npt.NDArray[Any], replicates: int = 100, seed: int = SEED) -> pd.DataFrame:
    cells = _cells(durations)
    split = split_kernel(cells, **OPTIONS)
    shares = cut_stability(cells, split, **OPTIONS, replicates=replicates, seed=seed, kernel_id=-3)
    return split.decisions_frame().assign(stability=shares)


def test_the_cut_between_two_modes_is_stable() -> None:
    rng = np.random.default_rng(SEED)
    modes = np.where(rng.random(4_000) < 0.05, 5e5, 1e5) * rng.normal(1, 0.02, 4_000)
    decisions = _stability(modes)
    assert decisions["accepted"].iloc[0]
    assert decisions["stability"].iloc[0] == 1.0


def test_the_cut_of_a_lone_outlier_comes_back_as_often_as_the_outlier() -> None:
    """Its launch is drawn again with probability 1 - 1/e, and nothing else is worth a cut."""
    print(f"seed {SEED}")
    durations = np.append(np.full(500, 100_000), 40_000_000)
    replicates = 800
    decisions = _stability(durations, replicates)
    assert decisions["accepted"].tolist() == [True, False, False]
    expected = 1 - np.exp(-1)
    error = np.sqrt(expected * (1 - expected) / replicates)
    assert decisions["stability"].iloc[0] == pytest.approx(expected, abs=4 * error)
    assert decisions["stability"].isna().tolist() == [False, True, True]


def test_stability_is_that_of_resampled_launches() -> None:
    """Against an oracle that draws single launches with replacement and counts launches between cuts one by one."""
    print(f"seed {SEED}")
    durations = np.sort(_lognormal(400).astype(np.int64))
    decisions = _stability(durations, replicates=200)
    rng = np.random.default_rng(SEED + 1)
    accepted = []
    for _ in range(200):
        tree = split_kernel(_cells(rng.choice(durations, durations.size)), **OPTIONS)
        accepted.append([d.cut_ns for d in tree.decisions if d.accepted and d.cut_ns is not None])
    bounds = {"": (0, durations.size)}
    accepted_at = [np.searchsorted(durations, np.array(cuts), side="right") for cuts in accepted]
    cut_at = decisions[decisions["cut_ns"].notna()]
    for node, cut_ns, stability in zip(cut_at["node"], cut_at["cut_ns"], cut_at["stability"], strict=True):
        low, high = bounds[node]
        cut = int(np.searchsorted(durations, int(cut_ns), side="right"))
        bounds[f"{node}0"], bounds[f"{node}1"] = (low, cut), (cut, high)
        reach = SAME_CUT_SHARE * min(cut - low, high - cut)
        again = float(np.mean([(np.abs(places - cut) <= reach).any() for places in accepted_at]))
        # Two estimates from 200 replicates each; Poisson and multinomial weights differ by O(1 / launches).
        assert stability == pytest.approx(again, abs=4 * np.sqrt(0.5 / 200) + 0.02)


def test_stability_depends_on_seed_and_kernel_alone() -> None:
    frame = histogram_of(_lognormal(500).astype(np.int64)).assign(kernel_id=9)
    config = load_config(overrides=["plan.method=stem-root", "plan.stability_replicates=10"]).plan
    one = split_frame(frame, config)
    other = split_frame(frame.sample(frac=1, random_state=3), config)
    pd.testing.assert_frame_equal(one, other)
    assert not one["stability"].equals(split_frame(frame.assign(kernel_id=10), config)["stability"])
    config = load_config(overrides=["plan.method=stem-root", "plan.stability_replicates=0"]).plan
    assert split_frame(frame, config)["stability"].isna().all()


def test_replicates_have_poisson_counts_and_unchanged_means() -> None:
    print(f"seed {SEED}")
    cells = _cells(_lognormal(3_000))
    totals = np.array([sample.n.sum() for sample in replicate_cells(cells, 500, SEED, 1)])
    assert abs(totals.mean() - 3_000) < 4 * np.sqrt(3_000 / 500)
    assert totals.std() == pytest.approx(np.sqrt(3_000), rel=0.15)
    for sample in replicate_cells(cells, 3, SEED, 1):
        assert (sample.min_ns <= sample.mean_ns).all()
        assert (sample.mean_ns <= sample.max_ns).all()
