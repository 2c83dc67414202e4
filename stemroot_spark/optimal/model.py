"""What may change between profile and simulation, and what an optimal plan is asked to guarantee."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stemroot_spark.errors import DataError

FloatArray = npt.NDArray[np.float64]

GUARANTEES = ("transfer", "total", "per-kernel", "worst-case")
DEFAULT_MAX_CELLS = 512


@dataclass(frozen=True)
class PlanningModel:
    """y_i = x_i f_c e_i: a profiled duration, an unknown factor per launch configuration, and launch noise.

    factor_spread and launch_noise are the relative standard deviations of f_c and e_i, both of mean 1 and
    independent. use_configurations: strata respect launch configurations, else they are cut by duration alone.
    max_cells bounds the cells of one kernel, and with them time and memory. repeat_noise: relative spread between two
    profiles that is assumed of launches which the second one lacks; no part of the model of one profile.
    """

    factor_spread: float = 0.0
    launch_noise: float = 0.0
    use_configurations: bool = False
    max_cells: int = DEFAULT_MAX_CELLS
    repeat_noise: float = 0.03

    def __post_init__(self) -> None:
        if not (0.0 <= self.factor_spread < np.inf and 0.0 <= self.launch_noise < np.inf):
            raise DataError(
                f"factor_spread {self.factor_spread}, launch_noise {self.launch_noise}: give 0 or above"
            )
        if self.max_cells < 2:
            raise DataError(f"max_cells {self.max_cells}: a kernel needs at least 2 cells to be cut")

    def expected_variance(
        self, n: npt.ArrayLike, mean_ns: npt.ArrayLike, m2: npt.ArrayLike, between_m2: npt.ArrayLike
    ) -> FloatArray:
        """E[S_y^2] in ns^2 of groups of launches, any common shape; 0 for a single launch.

        n launches of mean mean_ns; m2 = sum x^2 - X^2 / n; between_m2 = sum x^2 - sum_c X_c^2 / n, X_c the sum
        of x over configuration c, equal to m2 where the group has one configuration. From the model,
        E[(n - 1) S_y^2] = m2 + factor_spread^2 between_m2 + launch_noise^2 (1 + factor_spread^2) sum x^2 (n - 1) / n.
        """
        n, mean, m2, between = (np.asarray(a, dtype=np.float64) for a in (n, mean_ns, m2, between_m2))
        degrees = np.maximum(n - 1.0, 1.0)
        squares = m2 / n + mean**2
        noise = self.launch_noise**2 * (1.0 + self.factor_spread**2)
        variance = (m2 + self.factor_spread**2 * between) / degrees + noise * squares
        return np.where(n > 1.0, variance, 0.0)


def planning_model(
    guarantee: str,
    *,
    factor_spread: float,
    launch_noise: float,
    repeat_noise: float = 0.03,
    max_cells: int = DEFAULT_MAX_CELLS,
) -> PlanningModel:
    """Planning model behind a guarantee: only `transfer` knows configurations, factors and noise.

    DataError for a guarantee that is not one of GUARANTEES.
    """
    if guarantee not in GUARANTEES:
        raise DataError(f"guarantee {guarantee!r} is not one of {', '.join(GUARANTEES)}")
    if guarantee == "transfer":
        return PlanningModel(factor_spread, launch_noise, True, max_cells, repeat_noise)
    return PlanningModel(max_cells=max_cells, repeat_noise=repeat_noise)
