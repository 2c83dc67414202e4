"""The launches of one run in memory, what else is known of each, and their partners in another run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import DataError
from stemroot_spark.histogram import histogram_of

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

LAUNCH_COLUMNS = (
    "rank",
    "launch_index",
    "kernel_id",
    "kernel_invocation",
    "launch_config_id",
    "duration_ns",
)
_MATCH = ["rank", "kernel_id", "kernel_invocation"]


class CannotRunError(Exception):
    """A method lacks what it needs for this population; the message says what. Never leaves the package."""


@dataclass(frozen=True)
class Features:
    """What nsys does not record, per launch; a null is a launch without the feature.

    metrics: name -> shape (n,), NaN where missing. vectors: basic-block vectors as a sparse matrix of instructions,
    shape (n, blocks), an empty row where missing; None without any.
    """

    metrics: Mapping[str, FloatArray] = field(default_factory=dict)
    vectors: Any = None  # scipy.sparse.csr_array, which has no type parameters worth naming

    def at(self, where: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Features:
        """Features of the launches at the given positions, or where a mask is true."""
        return Features(
            {name: values[where] for name, values in self.metrics.items()},
            None if self.vectors is None else self.vectors[where],
        )

    def metric(self, name: str, what: str) -> FloatArray:
        """A metric that every launch has; CannotRunError that calls it `what` otherwise."""
        if name not in self.metrics:
            raise CannotRunError(f"needs {what}")
        values = self.metrics[name]
        missing = int(np.isnan(values).sum())
        if missing:
            raise CannotRunError(f"needs {what} of every launch: {missing} of {values.size} have none")
        return values


@dataclass(frozen=True)
class Population:
    """Launches in order of rank and launch; all arrays of shape (n,), durations in ns and above 0.

    blocks and threads_per_block are those of the launch configuration, None where the trace does not tell. repeat_ns:
    durations of the same launches in a second profile, 0 where it lacks them; None without one.
    """

    rank: IntArray
    launch_index: IntArray
    kernel_id: IntArray
    invocation: IntArray
    launch_config_id: IntArray
    duration_ns: IntArray
    blocks: IntArray | None = None
    threads_per_block: IntArray | None = None
    repeat_ns: IntArray | None = None
    features: Features = field(default_factory=Features)

    def __post_init__(self) -> None:
        shapes = {len(getattr(self, name)) for name in _ARRAYS if getattr(self, name) is not None}
        if len(shapes) != 1 or not self.size:
            raise DataError(f"a population of arrays of lengths {sorted(shapes)}: give equal ones, not empty")
        if self.duration_ns.min() <= 0:
            raise DataError(f"a duration of {self.duration_ns.min()} ns: launches have positive durations")

    @classmethod
    def of_frame(cls, frame: pd.DataFrame) -> Population:
        """From a row per launch with LAUNCH_COLUMNS, in any order, and optionally blocks and threads_per_block."""
        missing = [name for name in LAUNCH_COLUMNS if name not in frame.columns]
        if missing or frame.empty:
            raise DataError(f"launches without {', '.join(missing) or 'rows'}: nothing to evaluate")
        ordered = frame.sort_values(["rank", "launch_index"], kind="stable")
        columns: dict[str, Any] = {name: ordered[name].to_numpy(dtype=np.int64) for name in LAUNCH_COLUMNS}
        columns["invocation"] = columns.pop("kernel_invocation")
        for name in ("blocks", "threads_per_block"):
            if name in ordered.columns and not ordered[name].isna().any():
                columns[name] = ordered[name].to_numpy(dtype=np.int64)
        return cls(**columns)

    @property
    def size(self) -> int:
        """Number of launches."""
        return int(self.duration_ns.size)

    @cached_property
    def x(self) -> FloatArray:
        """Profiled durations in ns as floats."""
        return self.duration_ns.astype(np.float64)

    @cached_property
    def kernels(self) -> tuple[IntArray, npt.NDArray[np.intp]]:
        """Ids of the kernels, ascending, and the position in them of every launch's kernel."""
        ids, number = np.unique(self.kernel_id, return_inverse=True)
        return ids, number

    @cached_property
    def configurations(self) -> npt.NDArray[np.intp]:
        """Number of every launch's pair of kernel and launch configuration, counted from 0."""
        pairs = np.column_stack((self.kernel_id, self.launch_config_id))
        return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)

    @cached_property
    def by_kernel(self) -> list[npt.NDArray[np.intp]]:
        """Positions of the launches of each kernel, in the order of `kernels`."""
        ids, number = self.kernels
        order = np.argsort(number, kind="stable")
        return np.split(order, np.cumsum(np.bincount(number, minlength=ids.size))[:-1])

    @property
    def floor_speedup(self) -> float:
        """T over one mean launch of every kernel: no design that draws each kernel costs less on average."""
        means = [self.x[launches].mean() for launches in self.by_kernel]
        return float(self.x.sum() / np.sum(means))

    def histogram(self) -> pd.DataFrame:
        """Histogram rows of all kernels, as the moments job writes them."""
        parts = [
            histogram_of(self.duration_ns[launches], self.launch_config_id[launches]).assign(kernel_id=kernel)
            for kernel, launches in zip(self.kernels[0].tolist(), self.by_kernel, strict=True)
        ]
        return pd.concat(parts, ignore_index=True)

    def at(self, where: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Population:
        """The launches at the given positions, or where a mask is true."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        kept: dict[str, Any] = {
            name: None if array is None else array[where] for name, array in arrays.items()
        }
        return Population(**kept, features=self.features.at(where))

    def with_repeat(self, repeat: Population) -> Population:
        """The same launches with what a second profile of the workload took; DataError where none has a partner."""
        return replace(self, repeat_ns=np.nan_to_num(partner_ns(self, repeat)).astype(np.int64))

    def repeated(self) -> Population:
        """The same launches with the durations of the second profile, where there is one and it has them."""
        if self.repeat_ns is None:
            return self
        return replace(self, duration_ns=np.where(self.repeat_ns > 0, self.repeat_ns, self.duration_ns))

    def with_features(self, features: Features) -> Population:
        """The same launches with other features."""
        return replace(self, features=features)


_ARRAYS = (
    "rank",
    "launch_index",
    "kernel_id",
    "invocation",
    "launch_config_id",
    "duration_ns",
    "blocks",
    "threads_per_block",
    "repeat_ns",
)


class Matched(NamedTuple):
    """Launches of a profile that another run has too, their durations there, and how much has no partner.

    y_ns: shape (n,). unmatched: launches of the profile without partner, and their share of its time;
    other_unmatched_share: share of the other run's time without partner.
    """

    population: Population
    y_ns: FloatArray
    n_unmatched: int
    unmatched_share: float
    other_unmatched_share: float


def match(profile: Population, other: Population) -> Matched:
    """The launches that have a partner in the other run; DataError where none has one."""
    y = partner_ns(profile, other)
    found = np.isfinite(y)
    return Matched(
        profile.at(found),
        y[found],
        int((~found).sum()),
        float(profile.x[~found].sum() / profile.x.sum()),
        float(1.0 - y[found].sum() / other.x.sum()),
    )


def partner_ns(profile: Population, other: Population) -> FloatArray:
    """Durations of partners by (rank, kernel, invocation), as results are matched; NaN for a launch without one.

    DataError where no launch has one, or several launches have the same place.
    """
    left, right = (
        pd.DataFrame({"rank": p.rank, "kernel_id": p.kernel_id, "kernel_invocation": p.invocation})
        for p in (profile, other)
    )
    right = right.assign(y=other.x)
    if right.duplicated(_MATCH).any() or left.duplicated(_MATCH).any():
        raise DataError("several launches with one rank, kernel and invocation: rebuild the run's launches")
    y = left.merge(right, on=_MATCH, how="left", sort=False)["y"].to_numpy(dtype=np.float64)
    if not np.isfinite(y).any():
        raise DataError("no launch of the profile has a partner of its rank, kernel and invocation")
    return y
