"""Which rank a source is: from an allow-list of environment keys, from its name, else from its place in the order.

Environments of real traces carry access tokens, so only the listed keys are looked at, and only whole numbers leave.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import pandas as pd

RANK_KEYS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK")
WORLD_SIZE_KEYS = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")

_NUMBER = re.compile(r"\d{1,7}")
_NAMED_RANK = re.compile(r"(?<![a-z0-9])rank[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_DOTTED_NUMBER = re.compile(r"\.(\d{1,7})(?=\.|$)")
_CAPTURE_VARIABLE = re.compile(r"PROCESS_\d+:ENVIRONMENT_VARIABLE")


def environment_numbers(tables: dict[str, list[dict[str, Any]]]) -> dict[str, int]:
    """The listed variables that a report recorded, as numbers.

    ``tables`` holds rows of TARGET_INFO_SYSTEM_ENV (``DeviceEnvironment``: ``K=V;K=V``) and META_DATA_CAPTURE
    (``PROCESS_0:ENVIRONMENT_VARIABLE``: ``K="V"``), as nsys writes them.
    """
    assignments: list[str] = []
    for row in tables.get("TARGET_INFO_SYSTEM_ENV", []):
        if row.get("name") == "DeviceEnvironment":
            assignments += str(row.get("value")).split(";")
    for row in tables.get("META_DATA_CAPTURE", []):
        if _CAPTURE_VARIABLE.fullmatch(str(row.get("name"))):
            assignments.append(str(row.get("value")))
    found: dict[str, int] = {}
    for assignment in assignments:
        key, _, value = assignment.strip().partition("=")
        number = value.strip().strip('"')
        if key in RANK_KEYS + WORLD_SIZE_KEYS and _NUMBER.fullmatch(number):
            found.setdefault(key, int(number))
    return found


def first_of(keys: Iterable[str], numbers: dict[str, int]) -> int | None:
    """The number of the first key that is there."""
    return next((numbers[key] for key in keys if key in numbers), None)


def rank_in_name(name: str) -> int | None:
    """Rank that a path spells as ``rank12``, ``rank-12`` or ``rank_12``; the last one, which is nearest to the file."""
    found = _NAMED_RANK.findall(name)
    return int(found[-1]) if found else None


def numbers_in_names(names: list[str]) -> list[int | None]:
    """Rank that names spell as ``.12.``: taken only where every name has one and all differ.

    A single such number is as likely a version as a rank.
    """
    numbers = []
    for name in names:
        found = _DOTTED_NUMBER.findall(name.rsplit("/", 1)[-1])
        numbers.append(int(found[-1]) if found else None)
    if len(names) > 1 and None not in numbers and len(set(numbers)) == len(numbers):
        return numbers
    return [None] * len(names)


def assign_ranks(processes: pd.DataFrame) -> pd.DataFrame:
    """Give every process of a run a rank of its own.

    ``processes`` has source_index, process_key, is_usable, claimed_rank, claim_source and source_name: a row per source
    and process, claims null where there is none; a claim speaks for a report with one process only. The first usable
    source in order keeps a rank that several claim. All others take the ranks nobody holds in the order of (source,
    process key as an unsigned number); a source that is not usable takes its place there too. Returns source_index,
    process_key, rank, rank_source (where the rank comes from) and is_contested (the claim was refused) of usable ones.
    """
    ordered = processes.assign(is_high=processes["process_key"] < 0).sort_values(
        ["source_index", "is_high", "process_key"], ignore_index=True
    )
    alone = ~ordered["source_index"].duplicated(keep=False)
    claim = ordered["claimed_rank"].where(alone)
    source = ordered["claim_source"].where(claim.notna())
    if bool((claim.isna() & alone).all()):
        claim = pd.Series(numbers_in_names(ordered["source_name"].tolist()), dtype="Int64")
        source = source.where(claim.isna(), "name")
    by_trust = claim[ordered["is_usable"].sort_values(ascending=False, kind="stable").index]
    granted = claim.notna() & ~by_trust.duplicated().reindex(claim.index)
    taken = {int(rank) for rank in claim[granted]}
    free = (rank for rank in range(len(ordered) + len(taken)) if rank not in taken)
    # An unusable source whose claim a good one holds is most likely a spoilt copy of it: it needs no rank.
    is_placed = ordered["is_usable"] | claim.isna() | granted
    ranks = [
        int(rank) if ok else next(free) if placed else -1
        for rank, ok, placed in zip(claim, granted, is_placed, strict=True)
    ]
    result = pd.DataFrame(
        {
            "source_index": ordered["source_index"],
            "process_key": ordered["process_key"],
            "rank": ranks,
            "rank_source": source.where(granted, "order"),
            "is_contested": claim.notna() & ~granted,
        }
    )
    return result[ordered["is_usable"]].reset_index(drop=True)
