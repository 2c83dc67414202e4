"""The largest relative error when every kernel's simulated time may be off by its own factor in [1/rho, rho]."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stemroot_spark.errors import DataError

FloatArray = npt.NDArray[np.float64]


def worst_factors(variance: npt.ArrayLike, total_ns: npt.ArrayLike, rho: float) -> FloatArray:
    """Factors f_k in {1/rho, rho} that maximise sqrt(sum f_k^2 V_k) / sum f_k T_k; shape (kernels,).

    variance V_k in ns^2 and total_ns T_k > 0 in ns. The function is quasi-convex along each factor, so its maximum
    is at a corner; searched from prefixes of the kernels sorted by V/T^2, V/T and V, then by flipping single
    kernels while that helps. DataError for rho below 1.
    """
    if not 1.0 <= rho < np.inf:
        raise DataError(f"rho {rho}: factors lie in [1/rho, rho], give 1 or above")
    v, t = np.asarray(variance, dtype=np.float64), np.asarray(total_ns, dtype=np.float64)
    corners = [_best_prefix(np.argsort(-key, kind="stable"), v, t, rho) for key in (v / t**2, v / t, v)]
    corners = [_flipped(corner, v, t, rho) for corner in corners]
    return max(corners, key=lambda f: relative_deviation(v, t, f))


def relative_deviation(variance: FloatArray, total_ns: FloatArray, factors: FloatArray) -> float:
    """sqrt(sum f_k^2 V_k) / sum f_k T_k."""
    return float(np.sqrt(np.sum(factors**2 * variance)) / np.sum(factors * total_ns))


def _best_prefix(order: npt.NDArray[np.intp], v: FloatArray, t: FloatArray, rho: float) -> FloatArray:
    raised_v = np.concatenate(([0.0], np.cumsum(v[order]))) * (rho**2 - rho**-2)
    raised_t = np.concatenate(([0.0], np.cumsum(t[order]))) * (rho - 1.0 / rho)
    size = int(np.argmax((v.sum() / rho**2 + raised_v) / (t.sum() / rho + raised_t) ** 2))
    factors = np.full(v.size, 1.0 / rho)
    factors[order[:size]] = rho
    return factors


def _flipped(factors: FloatArray, v: FloatArray, t: FloatArray, rho: float) -> FloatArray:
    factors = factors.copy()
    for _ in range(4 * v.size):
        other = np.where(factors > 1.0, 1.0 / rho, rho)
        variance, total = float(np.sum(factors**2 * v)), float(np.sum(factors * t))
        after = (variance + (other**2 - factors**2) * v) / (total + (other - factors) * t) ** 2
        k = int(np.argmax(after))
        if after[k] <= variance / total**2 * (1.0 + 1e-12):
            break
        factors[k] = other[k]
    return factors
