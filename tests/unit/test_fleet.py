"""The trace generator: what it writes is known exactly, repeats exactly, and differs only where asked to."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest

from stemroot_spark.fleet import (
    PHASES,
    PLANTED_SECRETS,
    FactorChange,
    FleetError,
    FleetSpec,
    Launches,
    NewKernelChange,
    Workload,
    WriterOptions,
    kernel_table,
    launches,
    parse_change,
    write_fleet,
)
from tests.fleet_files import SEED, SMALL, contents, read_table

Mask = npt.NDArray[np.bool_]


def strings(folder: Path, rank: int = 0) -> dict[int, str]:
    table = read_table(folder, "StringIds", rank)
    return dict(zip(table["id"].tolist(), table["value"].tolist(), strict=True))


def is_communication(spec: FleetSpec, some: Launches) -> Mask:
    return np.array([kernel.is_communication for kernel in kernel_table(spec)])[some.kernel_index]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small fleet with everything on, beside its truth."""
    out = tmp_path_factory.mktemp("fleet") / "night0"
    write_fleet(out, SMALL, WriterOptions(has_layer_ranges=True))
    return out


def test_same_arguments_give_identical_bytes(fleet: Path, tmp_path: Path) -> None:
    write_fleet(tmp_path / "again", SMALL, WriterOptions(has_layer_ranges=True))
    assert contents(tmp_path / "again") == contents(fleet)
    assert len(contents(fleet)) == SMALL.ranks * 12


def test_another_seed_or_night_gives_other_durations() -> None:
    first = launches(SMALL, 0).duration_ns
    assert not np.array_equal(first, launches(SMALL, 0, night=1).duration_ns)
    assert not np.array_equal(first, launches(SMALL, 1).duration_ns)
    assert not np.array_equal(first, launches(replace(SMALL, seed=SEED + 1), 0).duration_ns)


def test_a_night_keeps_the_structure_and_changes_noise_only() -> None:
    spec = replace(SMALL, iterations=600, layers=3)
    base = launches(replace(spec, launch_noise=0.0, clock_spread=0.0), 0)
    nights = [launches(spec, 0, night=night) for night in (0, 1)]
    long = (base.duration_ns > 20_000) & ~is_communication(spec, base)
    for night in nights:
        assert np.array_equal(night.kernel_index, base.kernel_index)
        assert np.array_equal(night.config_index, base.config_index)
        assert np.array_equal(night.iteration, base.iteration)
        ratio = night.duration_ns[long] / base.duration_ns[long]
        # The clock phases, 12 of them, dominate the error of the mean.
        assert ratio.mean() == pytest.approx(1.0, abs=5 * spec.clock_spread / np.sqrt(12)), f"seed {SEED}"
        assert ratio.std() == pytest.approx(spec.noise_against_base, rel=0.03), f"seed {SEED}"
    ratio = nights[1].duration_ns[long] / nights[0].duration_ns[long]
    assert ratio.std() / ratio.mean() == pytest.approx(spec.noise_between_nights, rel=0.03), f"seed {SEED}"


def test_launch_noise_has_mean_one_and_the_stated_spread() -> None:
    quiet = replace(SMALL, iterations=400, clock_spread=0.0, stragglers_per_night=False, launch_noise=0.0)
    base, noisy = launches(quiet, 0), launches(replace(quiet, launch_noise=0.3), 0)
    ratio = (noisy.duration_ns / base.duration_ns)[base.duration_ns > 20_000]
    assert ratio.mean() == pytest.approx(1.0, abs=4 * 0.3 / np.sqrt(len(ratio))), f"seed {SEED}"
    assert ratio.std() == pytest.approx(0.3, rel=0.03), f"seed {SEED}"


def test_stragglers_repeat_on_request() -> None:
    spec = replace(SMALL, launch_noise=0.0, clock_spread=0.0, stragglers_per_night=False)
    assert np.array_equal(launches(spec, 0, night=0).duration_ns, launches(spec, 0, night=7).duration_ns)


def test_truth_equals_the_sums_of_what_was_written(fleet: Path) -> None:
    truth = json.loads(Path(f"{fleet}.truth.json").read_text())
    by_kernel: dict[str, tuple[int, int]] = {}
    for rank in range(SMALL.ranks):
        table, names = read_table(fleet, "CUPTI_ACTIVITY_KIND_KERNEL", rank), strings(fleet, rank)
        duration_ns = table["end"] - table["start"]
        assert truth["ranks"][rank] == {
            "rank": rank,
            "launches": len(duration_ns),
            "total_ns": int(duration_ns.sum()),
        }
        for name_id in np.unique(table["demangledName"]):
            mine = duration_ns[table["demangledName"] == name_id]
            count, total = by_kernel.get(names[int(name_id)], (0, 0))
            by_kernel[names[int(name_id)]] = (count + len(mine), total + int(mine.sum()))
    assert {k["kernel_name"]: (k["launches"], k["total_ns"]) for k in truth["kernels"]} == by_kernel
    assert truth["total_ns"] == sum(total for _, total in by_kernel.values())
    assert truth["spec"]["seed"] == SEED
    assert {k["kernel_name"].startswith("nccl") for k in truth["kernels"] if k["is_communication"]} == {True}


def test_launches_in_memory_are_those_on_disk(fleet: Path) -> None:
    for rank in range(SMALL.ranks):
        table, names, memory = (
            read_table(fleet, "CUPTI_ACTIVITY_KIND_KERNEL", rank),
            strings(fleet, rank),
            launches(SMALL, rank),
        )
        order = np.argsort(table["correlationId"])
        kernels = [kernel_table(SMALL)[i] for i in memory.kernel_index]
        configs = [kernel.configs[i] for kernel, i in zip(kernels, memory.config_index, strict=True)]
        assert np.array_equal((table["end"] - table["start"])[order], memory.duration_ns)
        assert [names[i] for i in table["demangledName"][order].tolist()] == [
            kernel.name for kernel in kernels
        ]
        for column, of_config in (
            ("gridX", [config.grid[0] for config in configs]),
            ("blockY", [config.block[1] for config in configs]),
            ("dynamicSharedMemory", [config.dynamic_shared_memory_bytes for config in configs]),
            ("clusterX", [config.cluster[0] for config in configs]),
        ):
            assert table[column][order].tolist() == of_config


def test_durations_are_ticks_of_32_ns() -> None:
    duration_ns = launches(SMALL, 0).duration_ns
    assert (duration_ns % 32 == 0).all()
    assert duration_ns.min() > 0


def test_events_of_a_stream_do_not_overlap(fleet: Path) -> None:
    table = read_table(fleet, "CUPTI_ACTIVITY_KIND_KERNEL")
    assert (np.diff(table["start"]) >= 0).all()
    assert len(np.unique(table["streamId"])) == 2
    for stream in np.unique(table["streamId"]):
        mine = table["streamId"] == stream
        assert (table["start"][mine][1:] >= table["end"][mine][:-1]).all()
        assert (np.diff(table["correlationId"][mine].astype(np.int64)) > 0).all()


def test_communication_waits_for_computation_and_the_optimizer_for_communication(fleet: Path) -> None:
    table, memory = read_table(fleet, "CUPTI_ACTIVITY_KIND_KERNEL"), launches(SMALL, 0)
    order = np.argsort(table["correlationId"])
    assert table["gridId"][order].tolist() == list(range(1, len(order) + 1))
    start_ns, end_ns = table["start"][order], table["end"][order]
    waits = is_communication(SMALL, memory)
    computed_ns = np.maximum.accumulate(np.where(waits, 0, end_ns))
    assert (start_ns[waits] >= computed_ns[waits]).all()
    late = memory.phase >= PHASES.index("optimizer")
    for i in range(SMALL.iterations):
        mine = memory.iteration == i
        assert start_ns[mine & late].min() >= end_ns[mine & ~late].max()
        assert start_ns[mine].min() > end_ns[memory.iteration < i].max(initial=0)


def test_every_kernel_joins_its_launching_call(fleet: Path) -> None:
    kernels, calls = (read_table(fleet, f"CUPTI_ACTIVITY_KIND_{kind}") for kind in ("KERNEL", "RUNTIME"))
    call_end = dict(zip(calls["correlationId"].tolist(), calls["end"].tolist(), strict=True))
    assert len(call_end) == len(calls["end"]) == len(kernels["start"]) + SMALL.iterations
    assert all(
        call_end[i] < start
        for i, start in zip(kernels["correlationId"].tolist(), kernels["start"].tolist(), strict=True)
    )
    assert set(calls["globalTid"] & 0xFFFF_FFFF_FF00_0000) == set(kernels["globalPid"])
    assert (np.diff(calls["start"]) > 0).all()


def test_ranges_hold_the_calls_of_their_iteration_and_phase(fleet: Path) -> None:
    names, memory = strings(fleet), launches(SMALL, 0)
    ranges, calls = read_table(fleet, "NVTX_EVENTS"), read_table(fleet, "CUPTI_ACTIVITY_KIND_RUNTIME")
    labels = [text or names[text_id] for text, text_id in zip(ranges["text"], ranges["textId"], strict=True)]
    kernel_ids = read_table(fleet, "CUPTI_ACTIVITY_KIND_KERNEL")["correlationId"]
    call_ns = calls["start"][np.isin(calls["correlationId"], kernel_ids)]
    for wanted, of_launch in (
        (lambda i: f"iteration {i}", memory.iteration),
        (PHASES.__getitem__, memory.phase),
    ):
        for value in np.unique(of_launch):
            inside = np.zeros(len(call_ns), dtype=bool)
            for label, start, end in zip(labels, ranges["start"], ranges["end"], strict=True):
                if label == wanted(value):
                    inside |= (call_ns >= start) & (call_ns <= end)
            assert np.array_equal(inside, of_launch == value)
    assert labels.count("layer 1") == 3 * SMALL.iterations


def test_autograd_thread_launches_the_backward_pass(tmp_path: Path) -> None:
    write_fleet(tmp_path / "f", SMALL, WriterOptions(has_autograd_thread=True))
    calls, memory = read_table(tmp_path / "f", "CUPTI_ACTIVITY_KIND_RUNTIME"), launches(SMALL, 0)
    _, counts = np.unique(calls["globalTid"], return_counts=True)
    assert counts[1] == (memory.phase == PHASES.index("backward")).sum()


def test_factor_acts_on_exactly_the_named_class() -> None:
    changed = replace(SMALL, changes=(parse_change("flash_fwd:factor=0.5"),))
    before, after = launches(SMALL, 1), launches(changed, 1)
    named = np.array(["flash_fwd" in kernel.name for kernel in kernel_table(SMALL)])[before.kernel_index]
    assert named.any()
    assert np.array_equal(before.duration_ns[~named], after.duration_ns[~named])
    assert np.abs(after.duration_ns[named] - 0.5 * before.duration_ns[named]).max() <= 32


def test_factor_acts_on_exactly_the_named_configuration() -> None:
    changed = replace(SMALL, changes=(parse_change("nvjet_tst_128x256@2:factor=1.4"),))
    before, after = launches(SMALL, 0), launches(changed, 0)
    named = np.array(["128x256_64x4" in kernel.name for kernel in kernel_table(SMALL)])[before.kernel_index]
    named &= before.config_index == 2
    assert 0 < named.sum() < len(named)
    assert np.array_equal(before.duration_ns[~named], after.duration_ns[~named])
    assert np.abs(after.duration_ns[named] - 1.4 * before.duration_ns[named]).max() <= 48


def test_new_kernel_takes_its_share_and_leaves_the_others_alone() -> None:
    name = "void acme::fused_mlp<(int)128, float>(acme::Params)"
    # More than one block: the others' draws must not shift in the second either.
    spec = replace(SMALL, iterations=1000, warmup_iterations=0, rank_spread=0.0)
    assert len(list(Workload(spec).blocks(0))) > 1
    changed = replace(spec, changes=(parse_change(f"new:{name}:share=0.1"),))
    before, after = launches(spec, 0), launches(changed, 0)
    is_new = after.kernel_index == len(kernel_table(spec))
    assert kernel_table(changed)[-1].name == name
    assert is_new.sum() == spec.iterations * spec.layers
    assert np.array_equal(before.duration_ns, after.duration_ns[~is_new])
    computation = (
        ~is_communication(changed, after) & (after.phase < PHASES.index("evaluation")) & (after.phase > 0)
    )
    share = after.duration_ns[is_new].sum() / after.duration_ns[computation].sum()
    # Sequence lengths, one per iteration, move the rest of the computation.
    assert share == pytest.approx(0.1, rel=0.05), f"seed {SEED}"


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("at::native::add:factor=0.8", FactorChange("at::native::add", 0.8)),
        ("nvjet@3:factor=1.4", FactorChange("nvjet", 1.4, 3)),
        ("new:a::b<(int)1, float>:share=0.02", NewKernelChange("a::b<(int)1, float>", 0.02)),
    ],
)
def test_changes_are_read_and_written_alike(text: str, change: FactorChange | NewKernelChange) -> None:
    assert parse_change(text) == change
    assert parse_change(str(change)) == change


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flash_fwd", "is not understood; write"),
        ("flash_fwd:speed=2", "is not understood; write"),
        ("flash_fwd:factor=fast", "'fast' is not a number"),
        ("flash_fwd:factor=0", "give a positive number"),
        ("new:k:share=1.5", "give a number between 0 and 1"),
        ("no_such_kernel:factor=2", "names no kernel"),
        ("nvjet@0:factor=2", "names 3 kernels"),
        ("flash_fwd_kernel<@9:factor=2", "configurations 0 to 5"),
        (
            "new:ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>):share=0.1",
            "exists",
        ),
    ],
)
def test_a_change_that_cannot_be_says_what_to_do(text: str, message: str) -> None:
    with pytest.raises(FleetError, match=message.replace("(", r"\(")):
        Workload(replace(SMALL, changes=(parse_change(text),)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ranks", 0),
        ("launch_noise", -0.1),
        ("second_mode_share", 1.0),
        ("straggler_tail_index", 1.0),
        ("seed", -1),
    ],
)
def test_a_value_outside_its_domain_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(FleetError, match=field):
        replace(SMALL, **{field: value})


def test_second_mode_and_lengths_have_the_stated_distribution() -> None:
    spec = replace(
        SMALL,
        iterations=1500,
        launch_noise=0.0,
        clock_spread=0.0,
        drift=0.0,
        warmup_iterations=0,
        rank_spread=0.0,
    )
    workload, some = Workload(spec), launches(spec, 0)
    bimodal = np.array([config.is_bimodal for config in workload.configs])
    config_id = np.searchsorted(workload.config_kernel, some.kernel_index) + some.config_index
    ratio = (some.duration_ns / workload.base_ns[config_id])[bimodal[config_id] & (some.duration_ns > 50_000)]
    in_second = ratio > (1 + spec.second_mode_ratio) / 2
    error = np.sqrt(spec.second_mode_share * (1 - spec.second_mode_share) / len(ratio))
    assert in_second.mean() == pytest.approx(spec.second_mode_share, abs=4 * error), f"seed {SEED}"
    assert ratio[in_second] == pytest.approx(spec.second_mode_ratio, rel=1e-3)

    attention = next(i for i, kernel in enumerate(workload.kernels) if "flash_fwd" in kernel.name)
    mine = (some.kernel_index == attention) & (some.phase == PHASES.index("forward"))
    log_duration = np.log(some.duration_ns[mine])[:: spec.layers]
    sigma = spec.length_sigma * spec.length_exponent
    assert log_duration.std() == pytest.approx(sigma, rel=4 / np.sqrt(2 * spec.iterations)), f"seed {SEED}"
    assert len(np.unique(some.config_index[mine])) == 6
    by_class = [some.duration_ns[mine & (some.config_index == i)] for i in range(6)]
    assert all(low.max() <= high.min() for low, high in pairwise(by_class))


def test_communication_has_heavy_tails() -> None:
    spec = replace(SMALL, iterations=1500, launch_noise=0.0, clock_spread=0.0, drift=0.0, warmup_iterations=0)
    some = launches(spec, 0)
    gather = next(i for i, kernel in enumerate(kernel_table(spec)) if "AllGather" in kernel.name)
    mine = some.duration_ns[(some.kernel_index == gather) & (some.config_index == 0)]
    factor = mine / np.median(mine)
    share = (factor > 2).mean()
    expected = spec.straggler_share * 2**-spec.straggler_tail_index
    assert share == pytest.approx(expected, abs=4 * np.sqrt(expected / len(mine))), f"seed {SEED}"


def test_first_iterations_are_slower_and_rare_kernels_are_rare() -> None:
    some = launches(replace(SMALL, length_sigma=0.0, straggler_share=0.0), 0)
    common = some.phase == PHASES.index("forward")
    per_iteration = [some.duration_ns[common & (some.iteration == i)].sum() for i in range(SMALL.iterations)]
    assert per_iteration[0] > 1.4 * per_iteration[4] > 1.2 * per_iteration[5]
    counts = np.bincount(some.kernel_index, minlength=len(kernel_table(SMALL)))
    assert counts.min() == 1
    assert len(counts) >= 40


def test_row_groups_are_bounded_and_blocks_do_not_change_a_value(fleet: Path, tmp_path: Path) -> None:
    write_fleet(tmp_path / "f", SMALL, WriterOptions(has_layer_ranges=True, block_launches=310))
    path = "rank-00001/CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    metadata = pq.read_metadata(tmp_path / "f" / path)
    rows = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
    assert len(rows) == SMALL.iterations // 2
    assert max(rows) <= 310
    for name in ("KERNEL", "RUNTIME"):
        table = path.replace("KERNEL", name)
        assert pq.read_table(tmp_path / "f" / table).equals(pq.read_table(fleet / table))


def test_processes_carry_rank_and_serialised_ids(fleet: Path) -> None:
    pids = set()
    for rank in range(SMALL.ranks):
        environment = read_table(fleet, "TARGET_INFO_SYSTEM_ENV", rank)
        values = dict(zip(environment["name"], environment["value"], strict=True))
        assert values["DeviceEnvironment"] == f"SLURM_PROCID={rank};SLURM_NTASKS=2"
        global_pid = int(read_table(fleet, "CUPTI_ACTIVITY_KIND_KERNEL", rank)["globalPid"][0])
        assert (global_pid >> 56, (global_pid >> 48) & 0xFF, global_pid & 0xFFFFFF) == (rank, 1, 0)
        pids.add((global_pid >> 24) & 0xFFFFFF)
    assert len(pids) == SMALL.ranks


def test_secrets_are_planted_on_request_only(fleet: Path, tmp_path: Path) -> None:
    tiny = replace(SMALL, ranks=1, layers=1, iterations=1)
    write_fleet(tmp_path / "f", tiny, WriterOptions(plant_secrets=True))
    capture = read_table(tmp_path / "f", "META_DATA_CAPTURE")["value"].tolist()
    environment = read_table(tmp_path / "f", "TARGET_INFO_SYSTEM_ENV")["value"].tolist()
    assert all(any(secret in value for value in capture) for secret in PLANTED_SECRETS)
    assert all(any(secret in value for value in environment) for secret in PLANTED_SECRETS)
    clean = [
        *read_table(fleet, "META_DATA_CAPTURE")["value"],
        *read_table(fleet, "TARGET_INFO_SYSTEM_ENV")["value"],
    ]
    assert not any("PLANTED" in value for value in clean)
