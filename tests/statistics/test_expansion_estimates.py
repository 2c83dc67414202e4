"""Bias and coverage of the estimates from expansion strata, by simulation."""

from __future__ import annotations

import numpy as np
import pandas as pd

from stemroot_spark.estimators import combine, summarise_kernel
from tests.drawn_kernels import made_kernel

NOISE = 0.03


def test_estimate_is_unbiased_and_intervals_cover() -> None:
    seed, repetitions = 1, 150
    rng = np.random.default_rng(seed)
    kernels = [made_kernel(1, (60, 20), (4, 3)), made_kernel(2, (30,), (2,)), made_kernel(3, (50,), (1,))]
    errors, hits, kernel_hits = [], [], []
    for _ in range(repetitions):
        truth, summaries, truths = 0.0, [], []
        for kernel in kernels:
            factor = rng.lognormal(0, 0.4)
            y = [x * factor * (1 + NOISE * rng.standard_normal(x.size)) for x in kernel.x]
            truths.append(sum(v.sum() for v in y))
            summaries.append(summarise_kernel(kernel.draw(y, rng), kernel.strata))
        truth = sum(truths)
        rows = [{"kernel_id": k, **summary._asdict()} for k, summary in enumerate(summaries)]
        result = combine(pd.DataFrame(rows), NOISE, 0.95)
        errors.append(result.total.estimate / truth - 1)
        hits.append(result.total.ci_low <= truth <= result.total.ci_high)
        first = result.kernels.iloc[0]
        kernel_hits.append(first.ci_low <= truths[0] <= first.ci_high)
    bias, bias_error = np.mean(errors), np.std(errors) / repetitions**0.5
    coverage_error = (0.95 * 0.05 / repetitions) ** 0.5
    print(f"seed {seed}: bias {bias:.5f} +- {bias_error:.5f}, coverage {np.mean(hits):.3f}, "
          f"of the first kernel {np.mean(kernel_hits):.3f}, +- {coverage_error:.3f}")  # fmt: skip
    assert abs(bias) < 4 * bias_error
    assert np.mean(hits) > 0.95 - 3 * coverage_error
    assert np.mean(kernel_hits) > 0.95 - 3 * coverage_error
