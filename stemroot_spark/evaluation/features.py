"""From rows of features to the launches of a population."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy import sparse

from stemroot_spark.errors import DataError
from stemroot_spark.evaluation.feature_files import BLOCK_PREFIX
from stemroot_spark.evaluation.population import Features, Population


def attach(population: Population, rows: pd.DataFrame) -> Population:
    """The population with the features of its launches; rows: rank, launch_index, feature, value.

    Rows of other launches are passed over: what is planned may be a part of what was profiled.
    """
    launches = pd.MultiIndex.from_arrays([population.rank, population.launch_index])
    place = launches.get_indexer(pd.MultiIndex.from_frame(rows[["rank", "launch_index"]]))
    known = rows.assign(place=place)[place >= 0]
    is_block = known["feature"].str.startswith(BLOCK_PREFIX)
    metrics = {}
    for name, group in known[~is_block].groupby("feature", sort=True):
        values = np.full(population.size, np.nan)
        values[group["place"]] = group["value"]
        metrics[str(name)] = values
    vectors = None
    if is_block.any():
        blocks = known[is_block]
        names, number = np.unique(blocks["feature"].to_numpy(dtype=str), return_inverse=True)
        entries = (blocks["value"].to_numpy(dtype=np.float64), (blocks["place"].to_numpy(), number))
        vectors = sparse.csr_array(entries, shape=(population.size, names.size))
    return population.with_features(Features(metrics, vectors))


def check_shapes(population: Population, rank: int, shapes: pd.DataFrame, where: str) -> int:
    """Launches of the file that have the grid and block of the run's launch of that number; returns how many matched.

    shapes: launch_index, blocks, threads_per_block, null where unknown. DataError where one differs, or where no
    launch of the file is one of the run: features of another workload would go unnoticed otherwise.
    """
    mine = population.rank == rank
    launches = pd.DataFrame(
        {
            "launch_index": population.launch_index[mine],
            "run_blocks": np.nan if population.blocks is None else population.blocks[mine],
            "run_threads": np.nan
            if population.threads_per_block is None
            else population.threads_per_block[mine],
        }
    )
    both = shapes.merge(launches, on="launch_index", how="inner")
    if both.empty:
        raise DataError(f"{where}: none of its {len(shapes)} launches is a launch of rank {rank} of the run")
    pairs = (("blocks", "run_blocks"), ("threads_per_block", "run_threads"))
    differs = np.zeros(len(both), dtype=np.bool_)
    for name, other in pairs:
        told, known = (both[column].to_numpy(dtype=np.float64, na_value=np.nan) for column in (name, other))
        differs |= np.isfinite(told) & np.isfinite(known) & (told != known)
    if differs.any():
        first = both[differs].iloc[0]
        raise DataError(
            f"{where}: {int(differs.sum())} of {len(both)} launches have another shape than in the run, the first "
            f"launch {first['launch_index']:.0f} with {first['blocks']} blocks of {first['threads_per_block']} threads "
            f"where the run has {first['run_blocks']} of {first['run_threads']}: profile the workload of the run, from "
            "its first launch on"
        )
    return len(both)
