"""ROOT with and without hysteresis under bootstrap: how many strata it makes, and at what cost.

    python bench/stability.py --replicates 200

Each population is one kernel of 20,000 launches, planned for 5 % at 95 % confidence. Its histogram is resampled with
Poisson weights; the table holds mean and standard deviation over the replicates, and what the kernel itself gives.
Cost is in mean launches. `cuts again`: mean stability of the accepted cuts, see stemroot_spark.stability.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from stemroot_spark.histogram import Cells, cells_from_histogram, histogram_of
from stemroot_spark.root import KernelSplit, split_kernel
from stemroot_spark.stability import cut_stability, replicate_cells

LAUNCHES = 20_000
EPSILON, CONFIDENCE = 0.05, 0.95
_HEADER = (
    "population",
    "method",
    "hysteresis",
    "leaves",
    "leaves, bootstrap",
    "cost",
    "cost, bootstrap",
    "cuts again",
)


def populations(seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Durations in ns, shape (launches,), by name."""
    rng = np.random.default_rng(seed)
    is_slow = rng.random(LAUNCHES) < 0.05
    shapes = {
        "bimodal 95/5": np.where(is_slow, 5.0, 1.0) * rng.normal(1.0, 0.05, LAUNCHES),
        "lognormal 0.5": np.exp(0.5 * rng.standard_normal(LAUNCHES)),
        "Pareto 2.2": 1.0 + rng.pareto(2.2, LAUNCHES),
    }
    return {name: np.maximum(1e5 * shape, 1.0).astype(np.int64) for name, shape in shapes.items()}


def _split(cells: Cells, paper: bool, hysteresis: float) -> KernelSplit:
    return split_kernel(cells, epsilon=EPSILON, confidence=CONFIDENCE, paper=paper, hysteresis=hysteresis)


def _figures(cells: Cells, split: KernelSplit) -> tuple[int, float]:
    mean_ns = float(cells.sum_ns.sum() / cells.n.sum())
    return len(split.leaves), sum(leaf.n_samples * leaf.mean_ns for leaf in split.leaves) / mean_ns


def _row(
    name: str, cells: Cells, paper: bool, hysteresis: float, replicates: int, seed: int
) -> tuple[str, ...]:
    whole = _split(cells, paper, hysteresis)
    leaves, cost = _figures(cells, whole)
    samples = replicate_cells(cells, replicates, seed, kernel_id=0)
    again = np.array([_figures(sample, _split(sample, paper, hysteresis)) for sample in samples])
    stability = cut_stability(
        cells,
        whole,
        epsilon=EPSILON,
        confidence=CONFIDENCE,
        paper=paper,
        hysteresis=hysteresis,
        replicates=replicates,
        seed=seed,
        kernel_id=0,
    )
    accepted = np.array([decision.accepted for decision in whole.decisions])
    mean, spread = again.mean(axis=0), again.std(axis=0, ddof=1)
    return (
        name,
        "stem-root-paper" if paper else "stem-root",
        f"{hysteresis:g}",
        f"{leaves}",
        f"{mean[0]:.1f} +- {spread[0]:.1f}",
        f"{cost:.1f}",
        f"{mean[1]:.1f} +- {spread[1]:.1f}",
        f"{stability[accepted].mean():.2f}" if accepted.any() else "",
    )


def main() -> None:
    """Run the command."""
    command = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument(
        "--replicates", type=int, default=200, help="bootstrap replicates (default %(default)s)"
    )
    command.add_argument("--seed", type=int, default=1, help="default %(default)s")
    command.add_argument(
        "--hysteresis",
        type=float,
        nargs="+",
        default=[0.0, 0.05, 0.2],
        metavar="SHARE",
        help="default 0 0.05 0.2",
    )
    arguments = command.parse_args()
    rows: list[tuple[str, ...]] = [_HEADER]
    for name, durations in populations(arguments.seed).items():
        cells = cells_from_histogram(histogram_of(durations))
        for paper in (False, True):
            for hysteresis in arguments.hysteresis:
                rows.append(_row(name, cells, paper, hysteresis, arguments.replicates, arguments.seed))
    widths = [max(len(row[k]) for row in rows) for k in range(len(_HEADER))]
    print(f"seed {arguments.seed}, {LAUNCHES:,} launches, {arguments.replicates} replicates")
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
