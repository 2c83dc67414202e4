"""Small kernels in strata, and draws of them, for tests of the estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd


@dataclass
class Kernel:
    """A population in strata: durations x per stratum, and how many of each are drawn."""

    x: list[np.ndarray]
    samples: list[int]

    @cached_property
    def strata(self) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "stratum_id": range(len(self.x)),
                "n_population": [x.size for x in self.x],
                "n_samples": self.samples,
                "mean_ns": [x.mean() for x in self.x],
                "stddev_ns": [x.std(ddof=1) if x.size > 1 else 0.0 for x in self.x],
            }
        )

    def draw(self, y: list[np.ndarray], rng: np.random.Generator) -> pd.DataFrame:
        parts = []
        for h, m in enumerate(self.samples):
            chosen = rng.choice(self.x[h].size, m, replace=False)
            parts.append(
                pd.DataFrame({"stratum_id": h, "duration_ns": self.x[h][chosen], "value": y[h][chosen]})
            )
        return pd.concat(parts, ignore_index=True)


def made_kernel(seed: int, sizes: Sequence[int], samples: Sequence[int]) -> Kernel:
    """Lognormal strata of the given sizes, deterministic by seed."""
    rng = np.random.default_rng(seed)
    x = [np.rint(rng.lognormal(8 + h, 0.1, n)) for h, n in enumerate(sizes)]
    return Kernel(x, list(samples))
