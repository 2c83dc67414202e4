"""Results and estimates: replays of other runs, files of results, and the sums that numpy makes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from conftest import Fleet, write_source
from support import trace_rows

from stemroot_spark.errors import DataError, FingerprintMismatchError, UnknownIdError, UsageError
from stemroot_spark.fleet import WriterOptions

_LAUNCH = ["rank", "launch_index"]
_STRATUM = ["kernel_id", "stratum_id"]


@pytest.fixture(scope="module")
def sample(fleet: Fleet) -> pd.DataFrame:
    return fleet.jobs.table("sample_manifest", plan_id="plan").sort_values(_LAUNCH, ignore_index=True)


def _kernel_totals(fleet: Fleet, sample: pd.DataFrame, values: pd.Series) -> pd.Series:
    """sum_h N_h mean(answers of h) per kernel; null where a stratum has no answer."""
    strata = fleet.jobs.table("strata", plan_id="plan").set_index(_STRATUM)["n_population"]
    means = values.groupby([sample[name] for name in _STRATUM]).mean()
    terms = strata * means.reindex(strata.index)
    return terms.groupby("kernel_id").agg(lambda parts: parts.sum(skipna=False))


def _estimates(fleet: Fleet, results_id: str) -> tuple[pd.Series, pd.DataFrame, pd.DataFrame]:
    """The total, the planned kernels and those left out, by kernel_id."""
    rows = fleet.jobs.table("estimates", plan_id="plan", results_id=results_id)
    total = rows[rows["level"] == "total"]
    assert len(total) == 1
    kernels = rows[rows["level"] == "kernel"].assign(kernel_id=lambda f: f["key"].astype("int64"))
    kernels = kernels.set_index("kernel_id")
    planned = kernels["method"] == "expansion"
    return total.iloc[0], kernels[planned], kernels[~planned]


def _communication(fleet: Fleet) -> pd.Series:
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    kernels = fleet.jobs.table("kernels")
    mine = launches[launches["kernel_id"].isin(kernels[kernels["is_communication"]]["kernel_id"])]
    return mine.groupby("kernel_id")["duration_ns"].sum()


def test_replaying_the_planned_run_itself_covers_its_total(fleet: Fleet, sample: pd.DataFrame) -> None:
    summary = fleet.jobs.import_results("plan", "self", simulator="profile", from_run_id="night")
    assert summary == {
        "results_id": "self",
        "plan_id": "plan",
        "n_ok": len(sample),
        "n_missing": 0,
        "n_rejected": 0,
    }
    results = fleet.jobs.table("simulation_results", results_id="self").sort_values(
        _LAUNCH, ignore_index=True
    )
    assert results["value"].tolist() == sample["duration_ns"].astype(float).tolist()
    assert set(results["unit"]) == {"ns"}

    estimated = fleet.jobs.reconstruct("plan", "self")
    total, kernels, left_out = _estimates(fleet, "self")
    truth = fleet.jobs.table("plans", plan_id="plan").iloc[0]["total_time_ns"]
    assert total["status"] == estimated["status"] == "ok"
    assert total["ci_low"] < truth < total["ci_high"]
    assert abs(total["estimate"] / truth - 1) < 0.05
    expected = _kernel_totals(fleet, sample, sample["duration_ns"].astype(float))
    np.testing.assert_allclose(kernels["estimate"].sort_index(), expected.sort_index(), rtol=1e-9)
    assert total["estimate"] == pytest.approx(expected.sum(), rel=1e-9)
    assert estimated["estimate"] == total["estimate"]
    # Replayed durations are the profile itself: no noise between the two.
    assert total["measured_noise"] == pytest.approx(0, abs=1e-9)
    assert total["profile_total_ns"] == truth
    assert total["n_samples"] == len(sample)

    by_time = _communication(fleet)
    assert left_out["method"].tolist() == ["profile"] * len(by_time)
    np.testing.assert_array_equal(left_out["estimate"].sort_index(), by_time.sort_index())
    assert left_out["reason"].str.contains("communication excluded").all()
    assert (left_out["n_samples"] == 0).all()
    singles = kernels[(kernels["n_samples"] == 1) & (kernels["n_population"] > 1)]
    assert (singles["status"] == "no_variance").all()
    assert singles["ci_low"].isna().all()


@pytest.mark.parametrize(("strata_by", "level"), [("phase", "phase"), ("rank-group", "rank")])
def test_parts_with_strata_of_their_own_get_estimates_of_their_own(
    fleet: Fleet, strata_by: str, level: str
) -> None:
    plan_id = results_id = f"by-{level}"
    overrides = [f"plan.strata_by={strata_by}", "plan.ranks_per_group=1"]
    fleet.jobs.plan("night", plan_id, overrides=overrides)
    fleet.jobs.import_results(plan_id, results_id, simulator="profile", from_run_id="night")
    fleet.jobs.reconstruct(plan_id, results_id)

    assert set(fleet.jobs.table("plans", plan_id=plan_id)["strata_by"]) == {strata_by}
    rows = fleet.jobs.table("estimates", plan_id=plan_id)
    parts = rows[rows["level"] == level].set_index("key")
    total = rows[rows["level"] == "total"].iloc[0]
    kernels = fleet.jobs.table("kernels")
    excluded = set(kernels[kernels["is_communication"]]["kernel_id"])
    launches = fleet.jobs.table("kernel_launches", run_id="night")
    planned = launches[~launches["kernel_id"].isin(excluded)].fillna({"phase": "(unknown)"})
    truth = planned.groupby(planned[level].astype(str))["duration_ns"].agg(["sum", "size"])
    assert len(parts) > 1
    assert parts["profile_total_ns"].to_dict() == truth["sum"].to_dict()
    assert parts["n_population"].to_dict() == truth["size"].to_dict()
    assert parts["estimate"].sum() == pytest.approx(total["estimate"], rel=1e-9)
    assert (parts["ci_low"] <= parts["estimate"]).all()
    assert total["ci_low"] <= total["profile_total_ns"] <= total["ci_high"]
    sampled = fleet.jobs.table("sample_manifest", plan_id=plan_id).merge(
        fleet.jobs.table("strata", plan_id=plan_id)[[*_STRATUM, "part_name"]], on=_STRATUM
    )
    expected = (sampled["weight"] * sampled["duration_ns"]).groupby(sampled["part_name"]).sum()
    np.testing.assert_allclose(parts["estimate"].sort_index(), expected.sort_index(), rtol=1e-9)
    assert set(parts["method"]) == {"expansion"}


def test_a_night_of_fewer_ranks_answers_only_what_it_has(
    fleet: Fleet, sample: pd.DataFrame, scratch: Path
) -> None:
    root = scratch / "other night"
    root.mkdir()
    for name in list(fleet.good)[:4]:
        write_source(scratch, root / name, WriterOptions(), night=30 + int(name[1]))
    fleet.jobs.ingest("other", root)
    summary = fleet.jobs.import_results("plan", "other", simulator="profile", from_run_id="other")

    expected = {}
    for (name, _), rank in fleet.jobs.ranks("other").items():
        rows = trace_rows(root / name).sort_values("correlationId")
        rows["invocation"] = rows.groupby("kernel_name").cumcount()
        for row in rows.itertuples():
            expected[rank, row.kernel_name, row.invocation] = row.end - row.start
    keys = list(sample[["rank", "kernel_name", "kernel_invocation"]].itertuples(index=False))
    values = pd.Series([expected.get(tuple(key)) for key in keys], dtype=float)
    assert 0 < values.isna().sum() < len(sample)
    assert (summary["n_ok"], summary["n_missing"]) == (values.notna().sum(), values.isna().sum())

    results = fleet.jobs.table("simulation_results", results_id="other").sort_values(
        _LAUNCH, ignore_index=True
    )
    np.testing.assert_array_equal(results["value"], values)
    assert (results["status"] == values.notna().map({True: "ok", False: "missing"})).all()
    missing = results[results["status"] == "missing"]
    assert missing["reason"].str.startswith("no launch of this rank, kernel and invocation").all()
    assert results[results["status"] == "ok"]["reason"].isna().all()

    fleet.jobs.reconstruct("plan", "other")
    total, kernels, _ = _estimates(fleet, "other")
    per_kernel = _kernel_totals(fleet, sample, values).reindex(kernels.index)
    np.testing.assert_allclose(kernels["estimate"], per_kernel, rtol=1e-9)
    incomplete = values.isna().groupby(sample["kernel_id"]).any().reindex(kernels.index)
    assert ((kernels["status"] == "incomplete") == incomplete).all()
    assert kernels[incomplete]["reason"].notna().all()
    assert per_kernel.isna().any()
    assert total["status"] == "incomplete"
    assert np.isnan(total["estimate"])
    assert np.isnan(total["ci_low"])
    lost = int(per_kernel.isna().sum())
    assert (
        f"{int(incomplete.sum())} of {len(kernels)} kernels lack results, {lost} of them" in total["reason"]
    )


def _lines(sample: pd.DataFrame, factor: float, unit: str) -> list[str]:
    return [
        f"{row.rank},{row.launch_index},{row.duration_ns * factor!r},{unit}" for row in sample.itertuples()
    ]


def test_a_file_of_cycles_is_read_whatever_its_layout_and_told_in_ns_by_the_clock(
    fleet: Fleet, sample: pd.DataFrame, scratch: Path
) -> None:
    lines = _lines(sample, 2.5, "Cycles")
    text = "\ufeff Rank ,note,LAUNCH_INDEX,value,unit\r\n\r\n"
    for line in [*lines, lines[0], lines[3]]:
        rank, index, value, unit = line.split(",")
        text += f' {rank} ,"a, ""b""",{index}, {value} ,{unit}\r\n\r\n'
    path = scratch / "results #1 [2] 50%.csv"
    path.write_text(text, encoding="utf-8", newline="")
    summary = fleet.jobs.import_results("plan", "cycles", source=str(path), clock_mhz=1_250.0)
    assert (summary["n_ok"], summary["n_missing"], summary["n_rejected"]) == (len(sample), 0, 0)
    results = fleet.jobs.table("simulation_results", results_id="cycles").sort_values(
        _LAUNCH, ignore_index=True
    )
    # 2.5 cycles per ns of the profile at 1.25 GHz are 2 ns.
    np.testing.assert_allclose(results["value"], sample["duration_ns"] * 2.0, rtol=1e-12)
    assert set(results["unit"]) == {"ns"}
    fleet.jobs.reconstruct("plan", "cycles")
    total, kernels, left_out = _estimates(fleet, "cycles")
    expected = _kernel_totals(fleet, sample, sample["duration_ns"] * 2.0)
    assert total["estimate"] == pytest.approx(expected.sum(), rel=1e-9)
    assert total["unit"] == "ns"
    assert set(left_out["unit"]) == {"ns"}
    np.testing.assert_allclose(kernels["estimate"].sort_index(), expected.sort_index(), rtol=1e-9)


def test_lines_that_cannot_be_used_are_rejected_with_a_reason(
    fleet: Fleet, sample: pd.DataFrame, scratch: Path
) -> None:
    lines = _lines(sample, 1.0, "cycles")
    head = [line.rsplit(",", 2)[0] for line in lines]
    bad = {
        0: (f"{head[0]},-5,cycles", "value is not a positive number"),
        1: (f"{head[1]},nan,cycles", "value is not a positive number"),
        2: (f"{head[2]},,cycles", "value is not a positive number"),
        3: (f"{head[3]},inf,cycles", "value is not a positive number"),
        4: (f"{head[4]},0,cycles", "value is not a positive number"),
        5: (f"{head[5]},fast,cycles", "value is not a positive number"),
        6: (f"{head[6]},7,hours", "unit is neither cycles nor ns"),
        7: (f"{head[7]},7,", "unit is neither cycles nor ns"),
        8: (f"{head[8]},7,cycles\n{head[8]},8,cycles", "several lines with different values"),
        9: (f"{head[9]},7,cycles\n{head[9]},-7,cycles", "value is not a positive number"),
    }
    undrawn = next(
        i for i in range(10_000) if not ((sample["rank"] == 0) & (sample["launch_index"] == i)).any()
    )
    text = [
        "rank,launch_index,value,unit",
        *(bad[i][0] if i in bad else line for i, line in enumerate(lines)),
    ]
    text.remove(lines[10])
    text += [f"0,{undrawn},9,cycles", "77,0,9,cycles"]
    path = scratch / "bad-lines.csv"
    path.write_text("\n".join(text), encoding="utf-8")
    summary = fleet.jobs.import_results("plan", "bad-lines", source=f"file://{path}")
    assert summary["n_ok"] == len(sample) - 11
    assert (summary["n_missing"], summary["n_rejected"]) == (1, 12)
    results = fleet.jobs.table("simulation_results", results_id="bad-lines").set_index(_LAUNCH)
    for i, (_, reason) in bad.items():
        row = results.loc[tuple(sample.loc[i, _LAUNCH])]
        assert (row["status"], row["reason"]) == ("rejected", reason), bad[i][0]
        assert np.isnan(row["value"])
        assert row["unit"] is None
    assert results.loc[tuple(sample.loc[10, _LAUNCH])]["reason"] == "no line for this launch"
    for stranger in ((0, undrawn), (77, 0)):
        assert results.loc[stranger]["reason"] == "this launch was not drawn"

    fleet.jobs.reconstruct("plan", "bad-lines")
    total, kernels, left_out = _estimates(fleet, "bad-lines")
    values = sample["duration_ns"].astype(float)
    values[list(range(11))] = np.nan
    expected = _kernel_totals(fleet, sample, values).reindex(kernels.index)
    np.testing.assert_allclose(kernels["estimate"], expected, rtol=1e-9)
    assert total["unit"] == "cycles"
    # What communication would take in cycles, nobody knows.
    assert left_out["estimate"].isna().all()
    assert left_out["reason"].str.contains("unknown in cycles").all()


def test_a_file_that_cannot_be_used_as_a_whole_changes_nothing(
    fleet: Fleet, sample: pd.DataFrame, scratch: Path
) -> None:
    before = fleet.jobs.versions()
    lines = _lines(sample, 1.0, "ns")
    header = "rank,launch_index,value,unit"
    for name, text, message in [
        ("column", "rank,launch_index,value\n0,1,5\n", "no column unit; the header must name"),
        ("empty", "", "no column rank, launch_index, value, unit"),
        ("units", "\n".join([header, *lines[:-1], lines[-1].replace(",ns", ",cycles")]), "mixes values in"),
        ("nameless", "\n".join([header, *lines, "x,5,5,ns", "0,1.5,5,ns", ",,5,ns"]), "3 lines of the CSV"),
    ]:
        path = scratch / f"{name}.csv"
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataError, match=message):
            fleet.jobs.import_results("plan", name, source=str(path))
    with pytest.raises(UsageError, match=r"nowhere\.csv: no such file"):
        fleet.jobs.import_results("plan", "x", source=str(scratch / "nowhere.csv"))
    assert fleet.jobs.versions() == before


def test_flags_that_do_not_fit_together_are_refused(fleet: Fleet) -> None:
    before = fleet.jobs.versions()
    for options, message in [
        ({"simulator": "profile"}, "needs --from-run-id"),
        ({"simulator": "profile", "from_run_id": "night", "source": "x.csv"}, "no --source"),
        ({"simulator": "csv"}, "needs --source"),
        ({"simulator": "csv", "source": "x.csv", "from_run_id": "night"}, "no --from-run-id"),
        ({"simulator": "profile", "from_run_id": "night", "clock_mhz": 0.0}, "--clock-mhz"),
        ({"simulator": "profile", "from_run_id": "night", "clock_mhz": float("nan")}, "--clock-mhz"),
    ]:
        with pytest.raises(UsageError, match=message):
            fleet.jobs.import_results("plan", "x", **options)
    with pytest.raises(UnknownIdError, match=r"--run-id nights is not in table runs|--from-run-id nights"):
        fleet.jobs.import_results("plan", "x", simulator="profile", from_run_id="nights")
    with pytest.raises(UnknownIdError, match=r"--plan-id plans is not in table plans.*Known: .*plan"):
        fleet.jobs.import_results("plans", "x", simulator="profile", from_run_id="night")
    with pytest.raises(UnknownIdError, match="--results-id x is not in table simulation_results"):
        fleet.jobs.reconstruct("plan", "x")
    assert fleet.jobs.versions() == before


def test_results_without_any_value_cannot_be_reconstructed(
    fleet: Fleet, sample: pd.DataFrame, scratch: Path
) -> None:
    path = scratch / "all-bad.csv"
    path.write_text("rank,launch_index,value,unit\n0,0,-1,ns\n", encoding="utf-8")
    summary = fleet.jobs.import_results("plan", "all-bad", source=str(path))
    assert (summary["n_ok"], summary["n_missing"] + summary["n_rejected"] >= len(sample)) == (0, True)
    with pytest.raises(DataError, match="hold no usable value"):
        fleet.jobs.reconstruct("plan", "all-bad")
    # The same id for another file is another result.
    path.write_text("rank,launch_index,value,unit\n0,0,-2,ns\n", encoding="utf-8")
    with pytest.raises(FingerprintMismatchError, match="source was"):
        fleet.jobs.import_results("plan", "all-bad", source=str(path))
