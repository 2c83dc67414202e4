"""ROOT: hierarchical two-way clustering of one kernel's durations, published version and ours.

Source: "Swift and Trustworthy Large-Scale GPU Simulation" (STEM+ROOT, MICRO 2025). A kernel starts as one
stratum and is cut in two by k-means on duration wherever that makes the sample cheaper. In one dimension the
best two-way cut is exact: the within-cluster sum of squares is least where the between-cluster one,
(A_j - mean W_j)^2 / (W_j (W - W_j)) up to a factor, is largest, with W_j launches of total duration A_j
on the left of cut j.
"""

from __future__ import annotations

from math import ceil, sqrt
from typing import NamedTuple

import numpy as np
import pandas as pd

from stemroot_spark.allocation import (
    allocate,
    normal_quantile,
    planning_variance,
    smallest_sample,
    variance_bound,
)
from stemroot_spark.errors import DataError
from stemroot_spark.histogram import Cells, Moments, prefix_moments

# Costs closer than this are equal: a split must not be kept or refused because a sum was rounded.
_RELATIVE_TIE = 1e-12


class Leaf(NamedTuple):
    """One stratum: launches of the kernel with lower_ns <= duration <= upper_ns.

    node is its path from the root (0 left, 1 right), depth the length of that path; stddev_ns has divisor
    n_population - 1.
    """

    node: str
    lower_ns: int
    upper_ns: int
    n_population: int
    mean_ns: float
    stddev_ns: float
    n_samples: int
    depth: int


class Decision(NamedTuple):
    """What was decided at one node; costs are expected sampled times in ns.

    cut_ns is the largest duration left of the best cut; it and cost_after are None where all durations are
    equal or cannot be told apart by the histogram. accepted says whether the node was split.
    """

    node: str
    n_population: int
    cut_ns: int | None
    cost_before: float
    cost_after: float | None
    accepted: bool


class KernelSplit(NamedTuple):
    """Strata of one kernel in ascending order of duration, and the decisions at all nodes, parents first."""

    leaves: list[Leaf]
    decisions: list[Decision]

    def leaves_frame(self) -> pd.DataFrame:
        """Leaves as rows, columns as in Leaf: node is text, times in ns int64 or float64, counts int64."""
        return pd.DataFrame(self.leaves, columns=list(Leaf._fields))

    def decisions_frame(self) -> pd.DataFrame:
        """Decisions as rows, columns as in Decision: cut_ns Int64 and cost_after float64 with nulls."""
        frame = pd.DataFrame(self.decisions, columns=list(Decision._fields))
        return frame.astype({"cut_ns": "Int64", "cost_after": "float64", "accepted": "bool"})


class _Node(NamedTuple):
    """Cells [start, stop) under one path; n_samples as the parent allocated it, budget the variance share."""

    path: str
    start: int
    stop: int
    moments: Moments
    n_samples: int
    budget: float


def split_kernel(
    cells: Cells, *, epsilon: float, confidence: float, paper: bool, hysteresis: float = 0.0
) -> KernelSplit:
    """Strata and sample sizes of one kernel whose time is to be known within epsilon at the confidence.

    With paper=False (method stem-root): each node carries a variance budget V, at the root (eps T_k / z)^2.
    A leaf takes the smallest m in 1..N with N^2 S^2 (1/m - 1/N) <= V; a split takes the cheapest whole-number
    allocation to its two children under V and is kept when that is cheaper; each child goes on with the
    variance it really has. So the leaves together keep the root's bound by construction.

    With paper=True (method stem-root-paper) the recursion is that of the published artifact, reproduced here
    to its published speedups; sigma has divisor N and c = z / epsilon:

    - the root takes m = ceil((c sigma / mu)^2) and costs m mu; a node of one launch takes m = 1, unsplit;
    - children take m_i = ceil(A / B^2 N_i sigma_i / sqrt(mu_i)) with A = sum_j N_j sigma_j sqrt(mu_j) and
      B = sum_j N_j mu_j / c, sums over the two children only;
    - the split is kept when sum m_i mu_i <= the node's cost, ties included; each child goes on with m_i mu_i
      as the cost to beat and keeps m_i if it is not split;
    - in that comparison a child without spread costs nothing: m_i = 0. A child of a single launch is
      nevertheless simulated in the end (m = 1), so cutting off outliers looks free and is not; a child of
      several equal durations stays at m = 0 and its time is missing from the estimate;
    - m may exceed N: the finite population is not corrected for.

    hysteresis: a split is kept only when it costs at most (1 - hysteresis) times the unsplit node. With 0 a saving
    of any size keeps it, which on continuous durations makes strata that another night would not repeat.

    Raises DataError when epsilon or confidence is not between 0 and 1, or hysteresis not in [0, 1).
    """
    if not 0.0 <= hysteresis < 1.0:
        raise DataError(f"hysteresis {hysteresis} is not in [0, 1): give for example 0.05")
    moments = _moments(cells, 0, len(cells))
    z = normal_quantile(confidence)
    budget = variance_bound(moments.n * moments.mean_ns, epsilon, confidence)
    c = z / epsilon
    n_samples = _paper_leaf_samples(moments, c) if paper else _leaf_samples(moments, budget)
    # A stack instead of recursion: heavy tails shed one outlier per level, deeper than Python's limit.
    stack = [_Node("", 0, len(cells), moments, n_samples, budget)]
    leaves: list[Leaf] = []
    decisions: list[Decision] = []
    while stack:
        node = stack.pop()
        cost_before = node.n_samples * node.moments.mean_ns
        if node.moments.m2 == 0.0 or node.stop - node.start == 1:
            decisions.append(Decision(node.path, node.moments.n, None, cost_before, None, False))
            leaves.append(_leaf(cells, node))
            continue
        cut = best_cut(cells, node.start, node.stop)
        left, right = _children(cells, node, cut, c=c, paper=paper)
        cost_after = left.n_samples * left.moments.mean_ns + right.n_samples * right.moments.mean_ns
        accepted = _is_worth_it(cost_before, cost_after, hysteresis, ties=paper)
        if paper:
            left, right = _sample_single_launch(left), _sample_single_launch(right)
        cut_ns = int(cells.max_ns[cut - 1])
        decisions.append(Decision(node.path, node.moments.n, cut_ns, cost_before, cost_after, accepted))
        if accepted:
            stack += [right, left]
        else:
            leaves.append(_leaf(cells, node))
    return KernelSplit(leaves, decisions)


def _is_worth_it(cost_before: float, cost_after: float, hysteresis: float, *, ties: bool) -> bool:
    if ties:
        return cost_after <= cost_before * (1.0 - hysteresis) * (1.0 + _RELATIVE_TIE)
    return cost_after < cost_before * (1.0 - max(hysteresis, _RELATIVE_TIE))


def best_cut(cells: Cells, start: int, stop: int) -> int:
    """Exact two-way k-means of the cells [start, stop): index of the first cell of the right-hand cluster.

    Needs at least two cells; of equally good cuts the leftmost is taken.
    """
    sums = prefix_moments(cells, start, stop)
    launches = sums.n[1:-1].astype(np.float64)
    total = float(sums.n[-1])
    shifted = sums.shifted[1:-1] - launches * (float(sums.shifted[-1]) / total)
    return start + 1 + int(np.argmax(shifted**2 / (launches * (total - launches))))


def _moments(cells: Cells, start: int, stop: int) -> Moments:
    """Moments of the cells [start, stop), centred on their own mean, so that tiny spreads stay exact."""
    return prefix_moments(cells, start, stop).moments(0, stop - start)


def _leaf(cells: Cells, node: _Node) -> Leaf:
    return Leaf(
        node=node.path,
        lower_ns=int(cells.min_ns[node.start]),
        upper_ns=int(cells.max_ns[node.stop - 1]),
        n_population=node.moments.n,
        mean_ns=node.moments.mean_ns,
        stddev_ns=node.moments.stddev_ns,
        n_samples=node.n_samples,
        depth=len(node.path),
    )


def _children(cells: Cells, node: _Node, cut: int, *, c: float, paper: bool) -> tuple[_Node, _Node]:
    left = _moments(cells, node.start, cut)
    right = _moments(cells, cut, node.stop)
    if paper:
        m_left, m_right = _paper_child_samples(left, right, c)
    else:
        m_left, m_right = _child_samples(left, right, node.budget)
    return (
        _Node(node.path + "0", node.start, cut, left, m_left, _variance(left, m_left)),
        _Node(node.path + "1", cut, node.stop, right, m_right, _variance(right, m_right)),
    )


def _variance(moments: Moments, n_samples: int) -> float:
    return planning_variance([moments.n], [moments.stddev_ns], [n_samples])


def _leaf_samples(moments: Moments, budget: float) -> int:
    return smallest_sample(moments.n, moments.stddev_ns, budget)


def _child_samples(left: Moments, right: Moments, budget: float) -> tuple[int, int]:
    m = allocate([left.n, right.n], [left.stddev_ns, right.stddev_ns], [left.mean_ns, right.mean_ns], budget)
    return int(m[0]), int(m[1])


def _paper_leaf_samples(moments: Moments, c: float) -> int:
    if moments.n == 1:
        return 1
    return ceil((c * moments.population_stddev_ns / moments.mean_ns) ** 2)


def _paper_child_samples(left: Moments, right: Moments, c: float) -> tuple[int, int]:
    both = (left, right)
    spread = sum(k.n * k.population_stddev_ns * sqrt(k.mean_ns) for k in both)
    tolerated = sum(k.n * k.mean_ns for k in both) / c
    m_left, m_right = (
        ceil(spread / tolerated**2 * k.n * k.population_stddev_ns / sqrt(k.mean_ns)) for k in both
    )
    return m_left, m_right


def _sample_single_launch(node: _Node) -> _Node:
    return node._replace(n_samples=1) if node.moments.n == 1 else node
