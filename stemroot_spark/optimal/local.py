"""Plans in one process, from rows in memory: what the driver does with small inputs and a grouped UDF with a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.optimal.calibration import sum_of_draws
from stemroot_spark.optimal.model import PlanningModel
from stemroot_spark.optimal.plan import (
    ALONE_FIGURES,
    OptimalPlan,
    PlanOptions,
    plan_from_kernels,
    plan_kernel_alone,
    plan_together,
)
from stemroot_spark.optimal.programme import column_names

# Columns of one kernel's solutions by name, those of KernelKind.solution_schema.
Columns = dict[str, Any]


class KernelWork(Protocol):
    """One kernel as a plan needs it: its programme, and the simulation of its strata."""

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> Columns:
        """Optimal strata and samples for each multiplier (1 / ns)."""

    def alternatives(self, multiplier: float, excess_ns: float) -> Columns:
        """Strata and samples near the optimum at the multiplier."""

    def simulate(
        self, strata: pd.DataFrame, *, seed: int, first: int, draws: int, factor: float
    ) -> pd.DataFrame:
        """Errors of the estimated time, rows of DRAWS_SCHEMA; DataError when strata and kernel disagree."""


class KernelKind(NamedTuple):
    """What kernels are planned from: how one is opened from its rows, and the columns of its solutions."""

    name: str
    open: Callable[[pd.DataFrame, PlanningModel], KernelWork]
    solution_schema: str

    @property
    def alone_schema(self) -> str:
        """Columns of plan_kernel_alone."""
        return f"{self.solution_schema}, {ALONE_FIGURES}"


class LocalWork:
    """Passes over kernels in memory, one after the other: a Work."""

    def __init__(self, kernels: Mapping[int, KernelWork], kind: KernelKind) -> None:
        self._kernels = dict(kernels)
        self._kind = kind
        self._names = column_names(kind.solution_schema)

    @classmethod
    def of_rows(cls, rows: pd.DataFrame, kind: KernelKind, model: PlanningModel) -> LocalWork:
        """Work over the kernels of rows with kernel_id; DataError without rows or kernel_id."""
        if "kernel_id" not in rows.columns or rows.empty:
            raise DataError(f"{kind.name} without kernels: rows with kernel_id are needed")
        groups = rows.groupby("kernel_id", sort=True)
        return cls({int(str(kernel)): kind.open(own, model) for kernel, own in groups}, kind)

    def alone(self) -> list[LocalWork]:
        """A Work over each kernel alone."""
        return [LocalWork({kernel: work}, self._kind) for kernel, work in self._kernels.items()]

    def frontier(self, multipliers: Sequence[float], coarse: bool) -> pd.DataFrame:
        """Optimal strata of every kernel for each multiplier, rows of the kind's solution_schema."""
        return self._rows([kernel.frontier(multipliers, coarse) for kernel in self._kernels.values()])

    def alternatives(self, multiplier: float, excess_ns: float) -> pd.DataFrame:
        """Strata of every kernel near its optimum at the multiplier, rows of the kind's solution_schema."""
        return self._rows([kernel.alternatives(multiplier, excess_ns) for kernel in self._kernels.values()])

    def simulate(
        self, strata: pd.DataFrame, factors: Mapping[int, float], *, seed: int, first: int, draws: int
    ) -> pd.DataFrame:
        """Draws summed over the kernels of the strata, each scaled by its factor (1 where missing)."""
        parts = []
        for key, rows in strata.groupby("kernel_id", sort=True):
            kernel_id = int(str(key))
            factor = factors.get(kernel_id, 1.0)
            kernel = self._kernels[kernel_id]
            parts.append(kernel.simulate(rows, seed=seed, first=first, draws=draws, factor=factor))
        return sum_of_draws(parts)

    def _rows(self, kernels: Sequence[Columns]) -> pd.DataFrame:
        merged: Columns = {}
        for name in self._names:
            parts = [columns[name] for columns in kernels]
            # Lists of configurations stay lists.
            is_array = isinstance(parts[0], np.ndarray)
            merged[name] = np.concatenate(parts) if is_array else [value for part in parts for value in part]
        return pd.DataFrame(merged)


def plan_in_process(rows: pd.DataFrame, kind: KernelKind, options: PlanOptions) -> OptimalPlan:
    """Plan of all kernels of rows under any guarantee; DataError for bad rows, or options outside their domain."""
    work = LocalWork.of_rows(rows, kind, options.model)
    if options.guarantee != "per-kernel":
        return plan_together(work, options)
    parts = [plan_kernel_alone(kernel, options) for kernel in work.alone()]
    return plan_from_kernels(pd.concat(parts, ignore_index=True), options)
