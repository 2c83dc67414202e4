"""The rows of trace_files and runs: what was read, kept and left out, and what is known about the run as a whole.

All of it is about sources and processes, of which a run has thousands at most, so it is plain pandas on the driver.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from stemroot_spark.errors import SourceError, UsageError
from stemroot_spark.probing import Probed, ProbedSources
from stemroot_spark.sources.identity import assign_ranks

OPAQUE_REMEDY = "trace with nsys profile --cuda-graph-trace=node to see the kernels inside"
_UINT64 = 2**64
# A process makes a few hundred CUDA calls before its first kernel; one that is found later than this had begun.
_LATE_CALL_ID = 1_000
_LATE_LAUNCH_ID = 1_000_000


def check_all_read(processes: pd.DataFrame, good: list[Probed]) -> None:
    """Raise SourceError unless every row that a probe counted was read: half a trace must not pass for a whole one."""
    read = processes.groupby("source_index")["n_kernels_read"].sum()
    for entry in good:
        n_read = int(read.get(entry.index, 0))
        if n_read != entry.probe.n_rows:
            raise SourceError(
                f"{entry.source.name}: {entry.probe.n_rows} kernel rows in it, {n_read} read; "
                "did it change while the job ran? Rerun the job"
            )


def with_ranks(processes: pd.DataFrame, probed: ProbedSources, rank: int | None) -> pd.DataFrame:
    """Add rank, rank_source and is_contested to processes (source_index, process_key and counts).

    ``rank`` is the operator's word for the one process there is; UsageError where there are more. A bad source holds
    the rank that it would have had, so that the others have the same ranks as on a night when it is good.
    """
    if rank is not None:
        if len(processes) > 1:
            raise UsageError(
                f"--rank {rank} names one process, but the sources hold {len(processes)}; leave it out, or ingest "
                "one report with one process"
            )
        return processes.assign(rank=rank, rank_source="option", is_contested=False)
    by_index = {entry.index: entry for entry in probed.entries}
    keys = [*zip(processes["source_index"], processes["process_key"], [True] * len(processes), strict=True)]
    keys += [(entry.index, 0, False) for entry in probed.bad]
    claims = pd.DataFrame(
        [
            (
                int(index),
                int(key),
                usable,
                by_index[index].probe.claimed_rank,
                by_index[index].probe.claim_source,
                by_index[index].source.name,
            )
            for index, key, usable in keys
        ],
        columns=["source_index", "process_key", "is_usable", "claimed_rank", "claim_source", "source_name"],
    ).astype({"claimed_rank": "Int64"})
    ranks = assign_ranks(claims)
    return processes.merge(ranks, on=["source_index", "process_key"], how="inner", validate="one_to_one")


def ledger_rows(run_id: str, probed: ProbedSources, processes: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of ``trace_files``: one per process of a source that was read, one per other source."""
    by_source = {index: rows.to_dict("records") for index, rows in processes.groupby("source_index")}
    rows = []
    for entry in probed.entries:
        found = entry.probe
        shared = {
            "run_id": run_id,
            "source_uri": entry.source.name,
            "format": found.format,
            "content_id": found.content_id,
            "size_bytes": found.size_bytes,
            "producer_version": found.producer_version,
            "schema_version": found.schema_version,
            "session_start_ns": found.session_start_ns,
            "n_copies": found.n_copies,
            "status": entry.status,
            "reason": found.reason
            or (f"same content as {entry.duplicate_of}" if entry.duplicate_of else None),
        }
        # The same process keys as in the report: unsigned.
        rows += [
            {
                **shared,
                "process_key": str(process["process_key"] % _UINT64),
                "rank": process["rank"],
                "rank_source": process["rank_source"],
                "n_kernels_read": process["n_kernels_read"],
                "n_kernels_kept": process["n_kernels_kept"],
                "n_kernels_rejected": process["n_kernels_rejected"],
                "rejected_by_reason": process["rejected_by_reason"],
                "n_graph_launches": process["n_graph_launches"],
                "is_windowed": is_windowed(entry, process["first_launch_id"]),
            }
            for process in by_source.get(entry.index, [])
        ] or [shared]
    return rows


def is_windowed(entry: Probed, first_launch_id: float | None) -> bool | None:
    """Whether a capture starts after its process did, None where nothing tells.

    The correlation id counts the CUDA calls of a process from its start, whenever the capture begins.
    """
    if entry.probe.is_window:
        return True
    if entry.probe.first_call_id is not None:
        return entry.probe.first_call_id > _LATE_CALL_ID
    if first_launch_id is not None and first_launch_id > _LATE_LAUNCH_ID:
        return True
    return None


def run_row(
    run_id: str,
    workload: str | None,
    probed: ProbedSources,
    processes: pd.DataFrame,
    ledger: list[dict[str, Any]],
    *,
    has_given_rank: bool,
) -> dict[str, Any]:
    """Row of ``runs`` but for what is counted in other tables."""
    good = probed.good
    present = sorted({int(rank) for rank in processes.loc[processes["n_kernels_kept"] > 0, "rank"]})
    told = max((entry.probe.world_size or 0 for entry in probed.entries), default=0)
    # A rank given by the operator says nothing about the others.
    world_size = max(told, 0 if has_given_rank else int(processes["rank"].max()) + 1)
    missing = sorted(set(range(world_size)) - set(present)) if world_size else None
    starts = [entry.probe.session_start_ns for entry in good if entry.probe.session_start_ns is not None]
    reason = _incomplete_reason(probed, processes, missing)
    opaque_share = float(processes["opaque_ns"].sum()) / max(float(processes["kept_ns"].sum()), 1.0)
    windows = {row.get("is_windowed") for row in ledger if row["status"] == "ingested"}
    return {
        "run_id": run_id,
        "workload": workload,
        "gpu_name": _agreed([entry.probe.gpu_name for entry in good]),
        "gpu_clock_mhz": _agreed([entry.probe.gpu_clock_mhz for entry in good]),
        "world_size": world_size or None,
        "ranks_present": len(present),
        "ranks_missing": missing,
        "is_complete": reason is None,
        "is_windowed": True if True in windows else None if None in windows else False,
        "incomplete_reason": reason,
        "opaque_time_share": opaque_share,
        "remark": f"{opaque_share:.1%} of the time is whole CUDA graphs; {OPAQUE_REMEDY}"
        if opaque_share
        else None,
        "n_sources": len(probed.entries),
        "n_sources_quarantined": len(probed.bad),
        "n_launches": int(processes["n_kernels_kept"].sum()),
        "started_at_utc": pd.Timestamp(min(starts), unit="ns", tz="UTC").floor("us") if starts else None,
    }


def _incomplete_reason(
    probed: ProbedSources, processes: pd.DataFrame, missing: list[int] | None
) -> str | None:
    n_lossy = sum(entry.probe.has_lost_events for entry in probed.good)
    n_contested = int(processes["is_contested"].sum())
    problems = [
        f"{len(probed.bad)} of {len(probed.entries)} sources quarantined" if probed.bad else "",
        f"{n_contested} processes claim a rank that another has" if n_contested else "",
        f"{len(missing)} ranks missing" if missing else "",
        f"the profiler says of {n_lossy} sources that not all CUDA events were collected" if n_lossy else "",
    ]
    return "; ".join(problem for problem in problems if problem) or None


def _agreed(values: list[Any]) -> Any:
    """The one value that all tell who tell any."""
    told = {value for value in values if value is not None}
    return told.pop() if len(told) == 1 else None
