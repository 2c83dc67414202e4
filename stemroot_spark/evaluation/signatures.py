"""Methods that choose launches by what they execute: PKA, Sieve, Photon's kernel sampling, SimPoint.

Each returns launches and weights; the estimate is the sum of weight times simulated time. They draw nothing, so none of
them states an error of its own. What the papers leave open is said at the constants.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.stats import gaussian_kde

from stemroot_spark.evaluation.clustering import information_criterion, kmeans, principal_components
from stemroot_spark.evaluation.population import CannotRunError, Population

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

INSTRUCTIONS = "instructions"
NCU_INSTRUCTIONS = "smsp__inst_executed.sum"
# PKA's twelve characteristics as metrics of Nsight Compute.
PKA_METRICS = {
    "coalesced global loads": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "coalesced global stores": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "coalesced local loads": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "thread global loads": "smsp__inst_executed_op_global_ld.sum",
    "thread global stores": "smsp__inst_executed_op_global_st.sum",
    "thread local loads": "smsp__inst_executed_op_local_ld.sum",
    "thread shared loads": "smsp__inst_executed_op_shared_ld.sum",
    "thread shared stores": "smsp__inst_executed_op_shared_st.sum",
    "thread global atomics": "smsp__sass_inst_executed_op_global_atom.sum",
    "instructions": NCU_INSTRUCTIONS,
    "divergence efficiency": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "thread blocks": "launch__grid_size",
}
PKA_MAX_CLUSTERS = 20
PKA_TARGET_ERROR = 0.05
# The paper does not say how many components it keeps.
PKA_VARIANCE_SHARE = 0.95
SIEVE_THETA = 0.4
_SIEVE_GRID = 512
# Half the Manhattan distance of normalised vectors: the share of instructions in other blocks.
PHOTON_DISTANCE = 0.05
SIMPOINT_DIMENSIONS = 15
SIMPOINT_MAX_CLUSTERS = 30
SIMPOINT_BIC_SHARE = 0.9
_WARP = 32


class Chosen(NamedTuple):
    """Positions of launches and their weights, both of shape (m,)."""

    positions: IntArray
    weights: FloatArray


def pka(population: Population) -> Chosen:
    """Principal Kernel Selection of PKA (Avalos Baddouh et al., MICRO 2021).

    Twelve metrics, principal components, k-means over all launches. The fewest clusters, at most twenty, whose first
    launches times their sizes give the profiled time within 5 %; the closest where none does.
    """
    missing = [name for name in PKA_METRICS.values() if name not in population.features.metrics]
    if missing:
        raise CannotRunError(
            f"needs ncu metrics: {len(missing)} of {len(PKA_METRICS)} not imported, the first {missing[0]}"
        )
    values = np.column_stack(
        [population.features.metric(name, f"the ncu metric {name}") for name in PKA_METRICS.values()]
    )
    points = principal_components(values, PKA_VARIANCE_SHARE)
    truth = float(population.x.sum())
    best: tuple[float, Chosen] | None = None
    for k in range(1, PKA_MAX_CLUSTERS + 1):
        clusters = kmeans(points, k)
        _, first, sizes = np.unique(clusters.labels, return_index=True, return_counts=True)
        error = abs(float((sizes * population.x[first]).sum()) / truth - 1.0)
        if best is None or error < best[0]:
            best = error, Chosen(first.astype(np.int64), sizes.astype(np.float64))
        if error <= PKA_TARGET_ERROR or len(clusters.centres) < k:
            break
    if best is None:
        raise CannotRunError("needs launches")
    return best[1]


def sieve(population: Population) -> Chosen:
    """Sieve (Naderan-Tahan, SeyyedAghaei and Eeckhout, ISPASS 2023).

    Launches of a kernel form strata by instruction count: one where its coefficient of variation is below 0.4, else
    strata cut at the minima of a kernel density estimate until each is below. A stratum's first launch with its most
    frequent block size stands for it, weighted by instructions: cycles = sum of stratum instructions / its IPC.
    """
    instructions = instruction_counts(population)
    positions, weights = [], []
    for launches in population.by_kernel:
        for stratum in _sieve_strata(instructions[launches]):
            members = launches[stratum]
            first = members[_first_of_dominant(population.threads_per_block, members)]
            positions.append(first)
            weights.append(instructions[members].sum() / instructions[first])
    return Chosen(np.array(positions, dtype=np.int64), np.array(weights))


def photon(population: Population) -> Chosen:
    """Kernel sampling of Photon (Liu, Sun and Carlson, MICRO 2023), without its sampling inside kernels.

    In order of launch: a launch whose basic-block vector is within 5 % of a simulated one's is not simulated; it takes
    that one's instructions per cycle, of several the one nearest in number of warps. Any other launch is simulated.
    """
    vectors, instructions = _block_vectors(population)
    if population.blocks is None or population.threads_per_block is None:
        raise CannotRunError("needs grid and block sizes for the number of warps: the trace has none")
    warps = population.blocks * -(-population.threads_per_block // _WARP)
    simulated: list[int] = []
    known = np.empty((0, vectors.shape[1]))
    weights = np.zeros(population.size)
    for launch in range(population.size):
        vector = vectors[[launch]].toarray()
        near = np.flatnonzero(np.abs(known - vector).sum(axis=1) / 2.0 <= PHOTON_DISTANCE)
        if near.size:
            candidates = np.array(simulated)[near]
            partner = int(candidates[np.argmin(np.abs(warps[candidates] - warps[launch]))])
            weights[partner] += instructions[launch] / instructions[partner]
        else:
            simulated.append(launch)
            known = np.vstack((known, vector))
            weights[launch] += 1.0
    positions = np.array(simulated, dtype=np.int64)
    return Chosen(positions, weights[positions])


def simpoint(population: Population) -> Chosen:
    """SimPoint 3.0 (Hamerly et al., JILP 2005) with a launch as interval.

    Normalised basic-block vectors, projected to 15 dimensions at random, k-means for every k up to 30; the fewest
    clusters whose BIC reaches 90 % of the range of all. The launch nearest to a centre stands for the instructions of
    its cluster.
    """
    vectors, instructions = _block_vectors(population)
    projection = np.random.default_rng(0).uniform(-1.0, 1.0, (vectors.shape[1], SIMPOINT_DIMENSIONS))
    points = np.asarray(np.round(vectors @ projection, 12), dtype=np.float64)
    tried = []
    for k in range(1, min(SIMPOINT_MAX_CLUSTERS, population.size) + 1):
        clusters = kmeans(points, k)
        if len(clusters.centres) < k:
            break
        tried.append(clusters)
    scores = np.array([information_criterion(points, clusters) for clusters in tried])
    enough = scores >= scores.min() + SIMPOINT_BIC_SHARE * (scores.max() - scores.min())
    clusters = tried[int(np.argmax(enough))]
    distance = ((points - clusters.centres[clusters.labels]) ** 2).sum(axis=1)
    positions = np.array(
        [
            members[np.argmin(distance[members])]
            for members in (np.flatnonzero(clusters.labels == c) for c in range(len(clusters.centres)))
        ],
        dtype=np.int64,
    )
    share = np.bincount(clusters.labels, weights=instructions)
    return Chosen(positions, share / instructions[positions])


def instruction_counts(population: Population) -> FloatArray:
    """Instructions of every launch, from a tracer or else from ncu; CannotRunError without them."""
    metrics = population.features.metrics
    name = INSTRUCTIONS if INSTRUCTIONS in metrics else NCU_INSTRUCTIONS
    counts = population.features.metric(name, "instruction counts")
    if (counts <= 0).any():
        raise CannotRunError(f"needs instruction counts above 0: {(counts <= 0).sum()} launches have none")
    return counts


def _block_vectors(population: Population) -> tuple[Any, FloatArray]:
    """Vectors normalised to a sum of 1 (sparse), and the sums: the instructions of each launch."""
    vectors = population.features.vectors
    if vectors is None:
        raise CannotRunError("needs basic-block vectors")
    instructions = np.asarray(vectors.sum(axis=1), dtype=np.float64).reshape(-1)
    empty = int((instructions <= 0).sum())
    if empty:
        raise CannotRunError(
            f"needs basic-block vectors of every launch: {empty} of {population.size} have none"
        )
    return vectors.multiply(1.0 / instructions[:, None]).tocsr(), instructions


def _first_of_dominant(threads: IntArray | None, members: npt.NDArray[np.intp]) -> int:
    if threads is None:
        return 0
    sizes, counts = np.unique(threads[members], return_counts=True)
    return int(np.argmax(threads[members] == sizes[counts.argmax()]))


def _sieve_strata(counts: FloatArray) -> list[npt.NDArray[np.intp]]:
    done, left = [], [np.arange(counts.size)]
    while left:
        members = left.pop()
        values = counts[members]
        if values.std() < SIEVE_THETA * values.mean():
            done.append(members)
            continue
        part = np.searchsorted(_density_minima(values), values)
        left += [members[part == number] for number in np.unique(part)]
    return done


def _density_minima(values: FloatArray) -> FloatArray:
    """Values to cut at; never empty, and never outside the values.

    Where the estimate has a single mode, the paper's strata would stay above the threshold: the middle of the range
    is cut instead.
    """
    distinct, counts = np.unique(values, return_counts=True)
    grid = np.linspace(distinct[0], distinct[-1], _SIEVE_GRID)
    density = gaussian_kde(distinct, weights=counts)(grid) if distinct.size > 2 else np.zeros(_SIEVE_GRID)
    inner = (density[1:-1] < density[:-2]) & (density[1:-1] <= density[2:])
    minima = grid[1:-1][inner]
    return minima if minima.size else np.array([(distinct[0] + distinct[-1]) / 2.0])
