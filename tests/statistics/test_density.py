"""Strata by density: the clusters are those of DBSCAN over the launches, and the sample keeps the bound."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from stemroot_spark.config import load_config
from stemroot_spark.density import density_clusters, density_leaves, require_scikit_learn
from stemroot_spark.density_planning import density_frame
from stemroot_spark.errors import UsageError
from stemroot_spark.histogram import Cells, cells_from_histogram, histogram_of

SEED = 17
DISTANCE, SHARE = 0.05, 0.01


def _cells(durations: npt.NDArray[Any]) -> Cells:
    return cells_from_histogram(histogram_of(durations.astype(np.int64)))


def _runs_by_definition(durations: npt.NDArray[np.int64]) -> list[int]:
    """Sizes of runs of launches of one cluster (or noise), from the definition of DBSCAN, launch by launch.

    Only for data without border points that two clusters could claim.
    """
    logs = np.sort(np.log(durations))
    near = np.abs(logs[:, None] - logs) <= DISTANCE
    is_core = near.sum(axis=1) >= SHARE * logs.size
    core = np.flatnonzero(is_core)
    number = np.full(logs.size, -1)
    number[core] = np.cumsum(np.append(0, np.diff(logs[core]) > DISTANCE))
    for i in np.flatnonzero(~is_core):
        claims = set(number[near[i] & is_core].tolist())
        assert len(claims) <= 1
        number[i] = claims.pop() if claims else -1
    ends = np.flatnonzero(np.append(np.diff(number) != 0, True))
    return [int(size) for size in np.diff(np.append(-1, ends))]


def test_strata_are_the_runs_of_dbscan_over_the_launches() -> None:
    print(f"seed {SEED}")
    rng = np.random.default_rng(SEED)
    # Few distinct durations far apart, so that a bucket holds one of them and the oracle has no ties.
    values = np.array([1_000, 1_010, 1_020, 2_000, 2_020, 9_000, 40_000])
    durations = rng.choice(values, 1_500, p=[0.3, 0.2, 0.1, 0.2, 0.196, 0.002, 0.002])
    leaves = density_leaves(_cells(durations), distance=DISTANCE, share=SHARE)
    assert leaves["n_population"].tolist() == _runs_by_definition(durations)
    assert leaves["lower_ns"].tolist() == [1_000, 2_000, 9_000]
    assert leaves["upper_ns"].tolist() == [1_020, 2_020, 40_000]


def test_two_modes_are_two_strata_and_a_tail_is_one_more() -> None:
    rng = np.random.default_rng(SEED)
    modes = np.where(rng.random(4_000) < 0.3, 5e5, 1e5) * rng.normal(1, 0.01, 4_000)
    assert len(density_clusters(_cells(modes), distance=DISTANCE, share=SHARE)) == 2
    tail = 1e5 * (1 + rng.pareto(2.2, 4_000))
    leaves = density_leaves(_cells(tail), distance=DISTANCE, share=SHARE)
    assert 2 <= len(leaves) <= 1 / SHARE
    inside = [tail.astype(np.int64) <= upper for upper in leaves["upper_ns"]]
    assert np.diff([0, *(i.sum() for i in inside)]).tolist() == leaves["n_population"].tolist()


def test_moments_of_strata_are_those_of_their_launches() -> None:
    durations = (1e5 * np.exp(0.5 * np.random.default_rng(SEED).standard_normal(3_000))).astype(np.int64)
    frame = histogram_of(durations).assign(kernel_id=4)
    leaves = density_frame(frame.sample(frac=1, random_state=1), load_config().plan)
    assert (leaves["kernel_id"] == 4).all()
    assert leaves["n_population"].sum() == durations.size
    for row in leaves.to_dict("records"):
        inside = durations[(durations >= row["lower_ns"]) & (durations <= row["upper_ns"])]
        assert inside.size == row["n_population"]
        assert row["mean_ns"] == pytest.approx(inside.mean(), rel=1e-12)
        assert row["stddev_ns"] == pytest.approx(inside.std(ddof=1) if inside.size > 1 else 0.0, rel=1e-9)


def test_a_kernel_of_one_duration_is_one_stratum() -> None:
    leaves = density_leaves(_cells(np.full(7, 500)), distance=DISTANCE, share=SHARE)
    pd.testing.assert_frame_equal(
        leaves,
        pd.DataFrame(
            {
                "lower_ns": [500],
                "upper_ns": [500],
                "n_population": [7],
                "mean_ns": [500.0],
                "stddev_ns": [0.0],
            }
        ),
    )


def test_absent_scikit_learn_is_told_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'stemroot-spark\[density\]'"):
        require_scikit_learn()
