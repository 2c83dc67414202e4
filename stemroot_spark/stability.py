"""How stable are the cuts of ROOT: would another night of the same kernel be split at the same places?

A bootstrap draws the launches again with replacement. Its Poisson form gives every launch an independent Poisson(1)
weight (Hanley and MacGibbon 2006; Chamandy et al. 2012), so that a bucket of n launches gets a Poisson(n) count: the
histogram is resampled without its launches, at a price that does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from stemroot_spark.histogram import Cells
from stemroot_spark.root import KernelSplit, split_kernel

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# Two cuts are the same when the launches between them are at most this share of the smaller side of the cut.
SAME_CUT_SHARE = 0.05


def cut_stability(
    cells: Cells,
    split: KernelSplit,
    *,
    epsilon: float,
    confidence: float,
    paper: bool,
    hysteresis: float = 0.0,
    replicates: int,
    seed: int,
    kernel_id: int,
) -> FloatArray:
    """Share of bootstrap replicates that accept the cut of each decision again, shape (decisions,).

    split: the tree of split_kernel over cells with the same options. A replicate accepts a cut again when any node
    of its own tree is split so close to it that the launches of the kernel between both cuts are at most
    SAME_CUT_SHARE of the smaller side of the node: strata are borders, whatever the order in which they were found.
    A rejected cut has a stability too; near 0 means that all replicates reject it as well. NaN for nodes without a
    cut, and for all of them without replicates. Depends on the seed and the kernel alone.
    """
    shares = np.full(len(split.decisions), np.nan)
    has_cut = np.array([decision.cut_ns is not None for decision in split.decisions])
    if replicates == 0 or not has_cut.any():
        return shares
    launches = np.concatenate(([0], np.cumsum(cells.n)))
    cuts = np.array([d.cut_ns for d in split.decisions if d.cut_ns is not None], dtype=np.int64)
    place = launches[np.searchsorted(cells.max_ns, cuts, side="right")]
    reach = np.array(
        [_smaller_side(cells, launches, path, split) for path in _paths(split)], dtype=np.float64
    )
    found = np.zeros(cuts.size)
    for sample in replicate_cells(cells, replicates, seed, kernel_id):
        tree = split_kernel(
            sample, epsilon=epsilon, confidence=confidence, paper=paper, hysteresis=hysteresis
        )
        again = np.array([d.cut_ns for d in tree.decisions if d.accepted], dtype=np.int64)
        if again.size:
            there = np.sort(launches[np.searchsorted(cells.max_ns, again, side="right")])
            found += _distance(place, there) <= SAME_CUT_SHARE * reach
    shares[has_cut] = found / replicates
    return shares


def replicate_cells(cells: Cells, replicates: int, seed: int, kernel_id: int) -> Iterator[Cells]:
    """Poisson bootstrap samples of one kernel's cells, as cells; buckets that drew nothing are left out.

    A bucket keeps its mean and spread: what 0.07 % of width hides is not resampled.
    """
    for number in range(replicates):
        rng = np.random.default_rng([seed % 2**64, kernel_id % 2**64, number])
        n = rng.poisson(cells.n)
        if not n.any():
            continue
        kept = n > 0
        n = n[kept].astype(np.int64)
        yield Cells(
            n=n,
            sum_ns=np.rint(n * cells.mean_ns[kept]).astype(np.int64),
            mean_ns=cells.mean_ns[kept],
            m2=cells.m2[kept] * (n / cells.n[kept]),
            min_ns=cells.min_ns[kept],
            max_ns=cells.max_ns[kept],
        )


def _paths(split: KernelSplit) -> list[tuple[str, int]]:
    return [(d.node, d.cut_ns) for d in split.decisions if d.cut_ns is not None]


def _smaller_side(cells: Cells, launches: IntArray, path_and_cut: tuple[str, int], split: KernelSplit) -> int:
    """Launches on the smaller side of a node's cut."""
    path, cut_ns = path_and_cut
    inside = [leaf for leaf in split.leaves if leaf.node.startswith(path)]
    low = int(launches[np.searchsorted(cells.min_ns, inside[0].lower_ns)])
    high = int(launches[np.searchsorted(cells.max_ns, inside[-1].upper_ns, side="right")])
    cut = int(launches[np.searchsorted(cells.max_ns, cut_ns, side="right")])
    return min(cut - low, high - cut)


def _distance(place: IntArray, there: IntArray) -> IntArray:
    """Launches from each place to the nearest of the sorted places there."""
    right = np.searchsorted(there, place)
    above = np.abs(there[np.minimum(right, there.size - 1)] - place)
    below = np.abs(there[np.maximum(right - 1, 0)] - place)
    nearest: IntArray = np.minimum(above, below)
    return nearest
