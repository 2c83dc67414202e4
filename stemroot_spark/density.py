"""Strata by density: one pass of DBSCAN over the logarithms of one kernel's durations.

Source: Ester, Kriegel, Sander, Xu, "A density-based algorithm for discovering clusters in large spatial databases with
noise", KDD 1996. Of scikit-learn's density clusterings DBSCAN is the one that takes weights, so that a bucket of the
histogram stands for any number of launches; HDBSCAN and OPTICS would need the launches themselves. Logarithms, because
spreads of durations are relative.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import numpy.typing as npt
import pandas as pd

from stemroot_spark.errors import UsageError
from stemroot_spark.histogram import Cells, prefix_moments

IntArray = npt.NDArray[np.int64]
LEAF_COLUMNS = ("lower_ns", "upper_ns", "n_population", "mean_ns", "stddev_ns")


def require_scikit_learn() -> None:
    """UsageError with what to install where scikit-learn is absent."""
    try:
        import sklearn.cluster  # noqa: F401
    except ImportError:
        raise UsageError(
            "--method density needs scikit-learn, on the driver and on every executor: "
            "pip install 'stemroot-spark[density]'"
        ) from None


def density_clusters(cells: Cells, *, distance: float, share: float) -> IntArray:
    """First cell of each stratum, ascending, shape (strata,): runs of cells of one cluster, or of noise.

    distance: largest difference of log durations between neighbours. share: of the kernel's launches that the
    neighbourhood of a core point holds at least. There are at most 1 / share clusters, since each holds the
    neighbourhood of a core point and those of different clusters share none of their core points; what lies
    between and beyond them is noise and makes strata of its own, since every launch must belong to one. UsageError
    without scikit-learn.
    """
    require_scikit_learn()
    from sklearn.cluster import DBSCAN

    if len(cells) == 1:
        return np.zeros(1, dtype=np.int64)
    least = max(ceil(share * int(cells.n.sum())), 2)
    # Neighbourhoods are at most 2 * distance wide, so the tree finds them without a matrix of all pairs.
    clustering = DBSCAN(eps=distance, min_samples=least, algorithm="kd_tree")
    labels = clustering.fit(np.log(cells.mean_ns)[:, None], sample_weight=cells.n).labels_
    starts: IntArray = np.append(0, np.flatnonzero(np.diff(labels)) + 1).astype(np.int64)
    return starts


def density_leaves(cells: Cells, *, distance: float, share: float) -> pd.DataFrame:
    """Strata of one kernel by density_clusters, rows of LEAF_COLUMNS ascending by duration, times in ns."""
    starts = density_clusters(cells, distance=distance, share=share)
    stops = np.append(starts[1:], len(cells))
    rows = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        moments = prefix_moments(cells, start, stop).moments(0, stop - start)
        lower, upper = int(cells.min_ns[start]), int(cells.max_ns[stop - 1])
        rows.append((lower, upper, moments.n, moments.mean_ns, moments.stddev_ns))
    return pd.DataFrame(rows, columns=list(LEAF_COLUMNS))
