"""K-means, principal components and the Bayesian information criterion, as the signature methods use them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]

_MAX_STEPS = 100
_STARTS = 5


class Clusters(NamedTuple):
    """labels: shape (n,), 0..k-1, every one used; centres: shape (k, d); squares: sum of squared distances."""

    labels: npt.NDArray[np.intp]
    centres: FloatArray
    squares: float


def kmeans(points: FloatArray, k: int, seed: int = 0) -> Clusters:
    """Best of several Lloyd runs from k-means++ starts (Arthur and Vassilvitskii 2007); points of shape (n, d).

    k is lowered to the number of distinct points, so that no cluster is empty.
    """
    distinct, inverse, counts = np.unique(points, axis=0, return_inverse=True, return_counts=True)
    k = min(k, len(distinct))
    runs = [_lloyd(distinct, counts, k, np.random.default_rng([seed, k, start])) for start in range(_STARTS)]
    best = min(runs, key=lambda run: run.squares)
    return best._replace(labels=best.labels[inverse.reshape(-1)])


def _lloyd(points: FloatArray, counts: npt.NDArray[np.intp], k: int, rng: np.random.Generator) -> Clusters:
    centres = points[_plus_plus(points, counts, k, rng)]
    labels = np.full(len(points), -1, dtype=np.intp)
    for _ in range(_MAX_STEPS):
        distances = _squared_distances(points, centres)
        nearest = distances.argmin(axis=1)
        for empty in np.setdiff1d(np.arange(k), nearest):
            # An emptied cluster takes the point that fits worst, of those that leave no other empty.
            spare = np.bincount(nearest, minlength=k)[nearest] > 1
            worst = int(np.argmax(np.where(spare, distances[np.arange(len(points)), nearest], -1.0)))
            nearest[worst] = empty
        if np.array_equal(nearest, labels):
            break
        labels = nearest
        weight = np.bincount(labels, weights=counts, minlength=k)
        sums = np.column_stack(
            [np.bincount(labels, weights=counts * column, minlength=k) for column in points.T]
        )
        centres = sums / weight[:, None]
    squares = float((counts * ((points - centres[labels]) ** 2).sum(axis=1)).sum())
    return Clusters(labels, centres, squares)


def _plus_plus(
    points: FloatArray, counts: npt.NDArray[np.intp], k: int, rng: np.random.Generator
) -> list[int]:
    chosen = [int(rng.choice(len(points), p=counts / counts.sum()))]
    nearest = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < k:
        chance = counts * nearest
        chance[chosen] = 0.0
        if not chance.sum() > 0.0:
            # What is left differs by less than its squares can tell.
            chance = np.ones(len(points))
            chance[chosen] = 0.0
        chosen.append(int(rng.choice(len(points), p=chance / chance.sum())))
        nearest = np.minimum(nearest, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return chosen


def _squared_distances(points: FloatArray, centres: FloatArray) -> FloatArray:
    return np.column_stack([((points - centre) ** 2).sum(axis=1) for centre in centres])


def principal_components(values: FloatArray, share: float) -> FloatArray:
    """Standardised columns turned to the fewest principal components that hold the share of their variance."""
    deviation = values.std(axis=0)
    kept = deviation > 0
    if not kept.any():
        return np.zeros((len(values), 1))
    standard = (values[:, kept] - values[:, kept].mean(axis=0)) / deviation[kept]
    left, singular, _ = np.linalg.svd(standard, full_matrices=False)
    variance = np.cumsum(singular**2) / np.sum(singular**2)
    n = min(int(np.searchsorted(variance, share)) + 1, singular.size)
    # Rounded, so that launches alike in every metric are one point.
    components: FloatArray = np.round(left[:, :n] * singular[:n], 9)
    return components


def information_criterion(points: FloatArray, clusters: Clusters) -> float:
    """BIC of a k-means clustering as spherical normals of one variance (Pelleg and Moore, X-means, ICML 2000)."""
    n, d = points.shape
    k = len(clusters.centres)
    sizes = np.bincount(clusters.labels, minlength=k).astype(np.float64)
    scale = float(points.var(axis=0).sum())
    # Without a floor, points that coincide would make every further cluster look infinitely good.
    variance = max(clusters.squares / max(n - k, 1), 1e-9 * scale, 1e-300)
    likelihood = (
        np.sum(sizes * np.log(sizes / n))
        - n / 2.0 * np.log(2.0 * np.pi)
        - n * d / 2.0 * np.log(variance)
        - (n - k) / 2.0
    )
    parameters = k - 1 + k * d + 1
    return float(likelihood - parameters / 2.0 * np.log(n))
