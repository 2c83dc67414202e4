"""Parts of kernels with strata of their own: first launches that a change point finds, and phases."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from stemroot_spark.config import load_config
from stemroot_spark.drawing import draw
from stemroot_spark.errors import UsageError
from stemroot_spark.moments import duration_histogram
from stemroot_spark.optimal_planning import optimal_strata
from stemroot_spark.parts import parts_of

# Ids that no float can hold.
_WARM, _STEADY = 7_183_098_287_330_337_997, -7_158_908_109_100_570_695


def _launches() -> pd.DataFrame:
    """Kernel 7 is slow in its first two iterations on both ranks, kernel 8 is not; two phases."""
    rng = np.random.default_rng(4)
    frames = []
    for rank in range(2):
        iteration = np.repeat(np.arange(40), 10)
        for kernel in (_WARM, _STEADY):
            slow = np.where((iteration < 2) & (kernel == _WARM), 1.5, 1.0)
            durations = 50_000 * slow * np.exp(0.03 * rng.standard_normal(iteration.size))
            frames.append(
                pd.DataFrame(
                    {
                        "run_id": "night",
                        "rank": rank,
                        "launch_index": np.arange(iteration.size) * 2 + (kernel == _STEADY),
                        "kernel_invocation": np.arange(iteration.size),
                        "kernel_id": kernel,
                        "launch_config_id": 1,
                        "duration_ns": np.rint(durations).astype(np.int64),
                        "iteration": iteration,
                        "phase": np.where(np.arange(iteration.size) % 10 < 6, "forward", "it's back"),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True).astype({"rank": "int32", "iteration": "int32"})


@pytest.mark.parametrize(
    ("strata_by", "expected"),
    [
        (
            "first-launches",
            {(_WARM, "iteration < 2"), (_WARM, "iteration >= 2 OR iteration IS NULL"), (_STEADY, None)},
        ),
        (
            "phase",
            {(k, p) for k in (_WARM, _STEADY) for p in ("phase = 'forward'", r"phase = 'it\'s back'")},
        ),
        (
            "rank-group",
            {(k, f"rank >= {r} AND rank < {r + 1}") for k in (_WARM, _STEADY) for r in range(2)},
        ),
    ],
)
def test_every_part_is_planned_and_drawn_by_itself(
    spark: SparkSession, strata_by: str, expected: set[tuple[int, str | None]]
) -> None:
    config = load_config(
        overrides=["plan.epsilon=0.01", f"plan.strata_by={strata_by}", "plan.ranks_per_group=1"]
    )
    source = spark.createDataFrame(_launches()).repartition(3).persist()
    parts = parts_of(source, config.plan)
    chosen = optimal_strata(duration_histogram(parts.launches), 2, config.plan)
    strata = parts.named(chosen.strata)
    found = strata[["kernel_id", "part"]].itertuples(index=False)
    assert {(int(k), p) for k, p in found} == expected
    assert not strata.duplicated(["kernel_id", "stratum_id"]).any()
    sample = draw(parts.launches, chosen.strata, run_id="night", seed=1, config=config.draw)
    named = parts.named_sample(sample, strata).toPandas()
    assert len(named) == strata["n_samples"].sum()
    source.createOrReplaceTempView("population")
    for row in strata.to_dict("records"):
        condition = row["part"] or "true"
        inside = spark.sql(
            f"SELECT rank, launch_index FROM population WHERE kernel_id = {row['kernel_id']} AND ({condition}) "
            f"AND duration_ns BETWEEN {row['lower_ns']} AND {row['upper_ns']}"
        ).toPandas()
        assert len(inside) == row["n_population"]
        mine = named[(named["kernel_id"] == row["kernel_id"]) & (named["stratum_id"] == row["stratum_id"])]
        assert len(mine) == row["n_samples"]
        assert len(mine.merge(inside, on=["rank", "launch_index"])) == len(mine)
    weights = named.groupby("kernel_id")["weight"].sum()
    np.testing.assert_allclose(weights, 800, rtol=1e-9)
    source.unpersist()


def test_phases_are_refused_where_none_are_known(spark: SparkSession) -> None:
    frame = _launches().assign(phase=None).astype({"phase": "object"})
    source = spark.createDataFrame(
        frame, ", ".join(f"{n} {t}" for n, t in zip(frame.columns, _TYPES, strict=True))
    )
    with pytest.raises(UsageError, match="no launch of the run has one"):
        parts_of(source, load_config(overrides=["plan.strata_by=phase"]).plan)


_TYPES = ("STRING", "INT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "BIGINT", "INT", "STRING")
