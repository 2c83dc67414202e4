"""A kernel's first launches: do they differ from the rest, and how many of them?

First iterations allocate, tune themselves and run on cold clocks. Whether a kernel has such a beginning is looked for
in its durations, by one change point near the start: the place where cutting off the beginning explains most of the
variance (least squares, as in Hinkley 1970), kept only where beginning and rest differ by much more than chance.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

# Steps (iterations, or launches where iterations are unknown) that are looked at one by one.
STEPS = 32
# A beginning differs from the rest by at least this, in logarithms of durations, and by so many standard errors: of
# 32 places the best one exceeds 5 by chance in fewer than 1 of 10,000 kernels.
LEAST_DIFFERENCE = 0.05
LEAST_T = 5.0
# A beginning of more than this share of the kernel is no beginning.
MOST_SHARE = 0.25

STEP_COLUMNS = ("step", "n", "mean_log", "variance_log")


def first_steps(steps: pd.DataFrame) -> int:
    """Number of first steps of a kernel that differ from its rest; 0 where none do.

    steps: a row per step with STEP_COLUMNS: n observations, mean and variance (divisor n) of their log durations
    relative to the mean of their launch configuration; the step STEPS holds all later ones. An observation is the
    mean of one rank and step, since launches of one iteration share its inputs and are not independent.
    """
    rows = steps.sort_values("step", ignore_index=True)
    step = rows["step"].to_numpy(dtype=np.int64)
    n, mean, variance = (rows[name].to_numpy(dtype=np.float64) for name in STEP_COLUMNS[1:])
    if step.size < 2:
        return 0
    sums, squares = np.cumsum(n * mean), np.cumsum(n * (variance + mean**2))
    head_n, head, tail_n = np.cumsum(n)[:-1], sums[:-1], n.sum() - np.cumsum(n)[:-1]
    tail = sums[-1] - head
    difference = head / head_n - tail / tail_n
    within = squares[-1] - head**2 / head_n - tail**2 / tail_n
    degrees = np.maximum(n.sum() - 2.0, 1.0)
    deviation = np.sqrt(np.maximum(within, 0.0) / degrees * (1.0 / head_n + 1.0 / tail_n))
    best = int(np.argmax(difference**2 * head_n * tail_n))
    # A change later than all single steps, or after a large part of the kernel, is another kind of change.
    is_beginning = step[best] + 1 < STEPS and head_n[best] <= MOST_SHARE * n.sum()
    is_real = abs(difference[best]) >= max(LEAST_DIFFERENCE, LEAST_T * float(deviation[best]))
    return int(step[best]) + 1 if is_beginning and is_real else 0
