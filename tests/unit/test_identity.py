"""Ranks: what sources claim, and how every process gets one of its own."""

from __future__ import annotations

import pandas as pd
import pytest

from stemroot_spark.sources.identity import (
    RANK_KEYS,
    assign_ranks,
    environment_numbers,
    first_of,
    numbers_in_names,
    rank_in_name,
)


def processes(*rows: tuple[int, int, int | None, str]) -> pd.DataFrame:
    columns = ["source_index", "process_key", "claimed_rank", "source_name"]
    frame = pd.DataFrame(rows, columns=columns).astype({"claimed_rank": "Int64"})
    return frame.assign(claim_source="environment", is_usable=True)


def ranks(frame: pd.DataFrame) -> dict[tuple[int, int], tuple[int, str]]:
    result = assign_ranks(frame)
    keys = zip(result["source_index"].tolist(), result["process_key"].tolist(), strict=True)
    return dict(
        zip(keys, zip(result["rank"].tolist(), result["rank_source"].tolist(), strict=True), strict=True)
    )


def test_only_listed_variables_leave_an_environment() -> None:
    tables = {
        "TARGET_INFO_SYSTEM_ENV": [
            {"name": "DeviceEnvironment", "value": "API_TOKEN=123456;SLURM_PROCID=3;SLURM_NTASKS=8"},
            {"name": "Hostname", "value": "RANK=5"},
        ],
        "META_DATA_CAPTURE": [
            {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": 'LOCAL_RANK="1"'},
            {"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": 'PMI_RANK="x7"'},
        ],
    }
    assert environment_numbers(tables) == {"SLURM_PROCID": 3, "SLURM_NTASKS": 8}


def test_the_first_listed_key_wins() -> None:
    assert first_of(RANK_KEYS, {"SLURM_PROCID": 3, "RANK": 5}) == 5
    assert first_of(RANK_KEYS, {}) is None


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("night/rank-00012", 12),
        ("rank12.sqlite", 12),
        ("rank_3.json.gz", 3),
        ("Rank7", 7),
        ("rank1/rank2.sqlite", 2),
        ("h100_2rank_llm_2026.2", None),
        ("crank3", None),
        ("ranking", None),
        ("rank", None),
    ],
)
def test_rank_in_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_dotted_numbers_are_ranks_only_where_all_names_have_one_and_all_differ() -> None:
    assert numbers_in_names(["job.0.sqlite", "job.10.sqlite"]) == [0, 10]
    assert numbers_in_names(["saxpy_2022.2.sqlite"]) == [None]
    assert numbers_in_names(["job.1.sqlite", "other.sqlite"]) == [None, None]
    assert numbers_in_names(["a.2.sqlite", "b.2.sqlite"]) == [None, None]


def test_processes_without_claims_take_ranks_in_the_order_of_source_and_unsigned_process_key() -> None:
    frame = processes((0, -5, None, "b"), (0, 9, None, "b"), (1, 3, None, "c"))
    assert ranks(frame.iloc[::-1]) == {(0, 9): (0, "order"), (0, -5): (1, "order"), (1, 3): (2, "order")}


def test_claims_are_kept_and_others_fill_the_gaps() -> None:
    frame = processes((0, 1, 2, "a"), (1, 1, None, "b"), (2, 1, 0, "c"))
    assert ranks(frame) == {(0, 1): (2, "environment"), (1, 1): (1, "order"), (2, 1): (0, "environment")}


def test_of_two_claims_to_one_rank_the_first_source_keeps_it_and_the_other_is_contested() -> None:
    frame = processes((0, 1, 1, "a"), (1, 1, 1, "b"))
    assert ranks(frame) == {(0, 1): (1, "environment"), (1, 1): (0, "order")}
    assert assign_ranks(frame)["is_contested"].tolist() == [False, True]


def test_a_claim_does_not_speak_for_a_report_of_several_processes() -> None:
    frame = processes((0, 1, 4, "a"), (0, 2, 4, "a"))
    assert ranks(frame) == {(0, 1): (0, "order"), (0, 2): (1, "order")}
    assert not assign_ranks(frame)["is_contested"].any()


def test_names_with_dotted_numbers_give_ranks_where_nothing_else_does() -> None:
    frame = processes((0, 1, None, "job.3.sqlite"), (1, 1, None, "job.5.sqlite"))
    assert ranks(frame) == {(0, 1): (3, "name"), (1, 1): (5, "name")}


def test_an_unusable_source_keeps_its_place_so_that_later_ranks_do_not_move() -> None:
    frame = processes((0, 1, None, "a"), (1, 0, None, "b"), (2, 1, None, "c"))
    frame["is_usable"] = [True, False, True]
    assert ranks(frame) == {(0, 1): (0, "order"), (2, 1): (2, "order")}


def test_an_unusable_source_never_takes_a_rank_that_a_usable_one_claims() -> None:
    frame = processes((0, 0, 0, "a"), (1, 1, 0, "b"), (2, 1, None, "c"))
    frame["is_usable"] = [False, True, True]
    assert ranks(frame) == {(1, 1): (0, "environment"), (2, 1): (1, "order")}
    assert not assign_ranks(frame)["is_contested"].any()
