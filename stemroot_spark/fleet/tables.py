"""The small tables of a report: who ran where, on which GPU, exported how. Rows as dictionaries."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from stemroot_spark.fleet.schema import Rung

Row = dict[str, Any]

GPUS_PER_NODE = 8
VM_ID = 1
FIRST_NIGHT_UTC = datetime(2026, 3, 2, 1, 30, tzinfo=UTC)
SYSTEM_CLOCK_NS = 26_590_627_110_965
PLANTED_SECRETS = (
    "PLANTED-SECRET-api-key-7f3a",
    "PLANTED-SECRET-hub-token-19c2",
    "PLANTED-SECRET-password-55d0",
    "PLANTED-SECRET-user-e81b",
    "PLANTED-SECRET-host-c4d6",
)
"""What `plant_secrets` writes into environment, command line and host name; none may leave the trace."""


@dataclass(frozen=True)
class Process:
    """The one profiled process of a report.

    The serialised ids are `<hardware:8><VM:8><process:24><thread:24>`.
    """

    rank: int
    world_size: int
    night: int
    hardware_id: int

    @property
    def pid(self) -> int:
        """Process id, different on every rank."""
        return (4_211 + 17 * self.rank) % (1 << 24)

    @property
    def local_rank(self) -> int:
        """The GPU of the node, also the CUDA ordinal."""
        return self.rank % GPUS_PER_NODE

    @property
    def global_vid(self) -> int:
        """Serialised machine id."""
        return self.hardware_id << 56 | VM_ID << 48

    @property
    def global_pid(self) -> int:
        """Serialised process id."""
        return self.global_vid | self.pid << 24

    def global_tid(self, thread: int = 0) -> int:
        """Serialised id of the process's n-th thread."""
        return self.global_pid | (self.pid + thread)

    @property
    def session_start_utc(self) -> datetime:
        """When the session began: one night a day, ranks some milliseconds apart."""
        return FIRST_NIGHT_UTC + timedelta(days=self.night, milliseconds=13 * self.rank)


def small_tables(
    process: Process, rung: Rung, duration_ns: int, *, is_lazy: bool, has_nvtx: bool, plant_secrets: bool
) -> dict[str, list[Row]]:
    """Rows of every small table in the newest schema; the writer keeps what the version has."""
    export = list(_name_values(_export_metadata(rung, is_lazy)))
    return {
        "EXPORT_META_DATA": export,
        "META_DATA_EXPORT": export,
        "META_DATA_CAPTURE": list(_name_values(_capture_metadata(process, has_nvtx, plant_secrets))),
        "PROCESSES": [
            {"globalPid": process.global_vid | 1 << 24, "pid": 1, "name": "systemd"},
            {"globalPid": process.global_pid, "pid": process.pid, "name": "python3"},
        ],
        # Start and stop are on the machine's clock, not on that of the events.
        "ANALYSIS_DETAILS": [
            {
                "globalVid": process.global_vid,
                "duration": duration_ns,
                "startTime": SYSTEM_CLOCK_NS,
                "stopTime": SYSTEM_CLOCK_NS + duration_ns,
            }
        ],
        "TARGET_INFO_SYSTEM_ENV": _system_environment(process, plant_secrets),
        "TARGET_INFO_SESSION_START_TIME": [_session_start(process)],
        "TARGET_INFO_CUDA_DEVICE": [
            {
                "gpuId": process.local_rank,
                "cudaId": process.local_rank,
                "pid": process.pid,
                "uuid": _gpu_uuid(process, process.local_rank),
                "numMultiprocessors": 132,
            }
        ],
        "TARGET_INFO_GPU": [_gpu(process, gpu) for gpu in range(GPUS_PER_NODE)],
    }


def _name_values(pairs: Iterable[tuple[str, str]]) -> Iterable[Row]:
    return ({"name": name, "value": value} for name, value in pairs)


def _export_metadata(rung: Rung, is_lazy: bool) -> list[tuple[str, str]]:
    prefix = "EXPORT_PARAM_" if rung.version >= (3, 4, 0) else "EXPORT_"
    numbers = zip(("MAJOR", "MINOR", "MICRO"), rung.version, strict=True)
    return [
        ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
        ("EXPORT_PRODUCT_VERSION", rung.product_version),
        ("EXPORT_PRODUCT_DATE", ".".join(rung.product_version.split(".")[:2])),
        ("EXPORT_SCHEMA_VERSION", rung.name),
        *((f"EXPORT_SCHEMA_VERSION_{part}", str(number)) for part, number in numbers),
        ("EXPORT_PLATFORM", "linux-desktop"),
        ("EXPORT_ARCH", "x64"),
        (f"{prefix}LAZY", "true" if is_lazy else "false"),
        (f"{prefix}INCLUDE_JSON", "false"),
        (f"{prefix}INCLUDE_BLOBS", "false"),
        (f"{prefix}TIME_NORMALIZE", "false"),
        (f"{prefix}TIME_SHIFT", "0"),
        (f"{prefix}TABLES_TO_EXPORT", ""),
        (f"{prefix}TIMES_TO_EXPORT", ""),
    ]


def _environment(process: Process, plant_secrets: bool) -> list[tuple[str, str]]:
    variables = [("SLURM_PROCID", str(process.rank)), ("SLURM_NTASKS", str(process.world_size))]
    if plant_secrets:
        names = ("WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "USER", "HOSTNAME")
        variables += list(zip(names, PLANTED_SECRETS, strict=True))
    return variables


def _capture_metadata(process: Process, has_nvtx: bool, plant_secrets: bool) -> list[tuple[str, str]]:
    arguments = ["train.py", "--config", "llm.yaml"]
    if plant_secrets:
        arguments += ["--api-key", PLANTED_SECRETS[0]]
    return [
        ("DEVICE_ID", "Local (CLI)"),
        *([("CAPTURE_EVENT_TYPE", "NvtxEvents")] if has_nvtx else []),
        ("CAPTURE_EVENT_TYPE", "Cuda"),
        ("START_TRIGGER", "Immediate"),
        ("CUDA_GRAPH_TRACE_OPTIONS:MODE", "Graph"),
        ("CUDA_TRACE_SCOPE", "ProcessTree"),
        ("PROCESS_0:HOW_TO_ATTACH", "LaunchAnother"),
        ("PROCESS_0:COMMAND", "python3"),
        *((f"PROCESS_0:ARGUMENT_{i}", argument) for i, argument in enumerate(arguments)),
        *(("PROCESS_0:ENVIRONMENT_VARIABLE", f'{k}="{v}"') for k, v in _environment(process, plant_secrets)),
    ]


def _system_environment(process: Process, plant_secrets: bool) -> list[Row]:
    host = PLANTED_SECRETS[4] if plant_secrets else f"node-{process.rank // GPUS_PER_NODE:04d}"
    variables = ";".join(f"{name}={value}" for name, value in _environment(process, plant_secrets))
    entries = (
        ("CpuCores", 1, "96"),
        ("CpuArchitecture", 3, "x86_64"),
        ("NvDriverVersion", 205, "580.95.05"),
        ("DeviceEnvironment", 610, variables),
        ("CudaDriverVersion", 611, "13000"),
        ("Hostname", 619, host),
        ("GpuInfo", 897, "{}"),
    )
    machine = {"globalVid": process.global_vid, "devStateName": "Local (CLI)"}
    return [machine | {"name": name, "nameEnum": number, "value": value} for name, number, value in entries]


def _session_start(process: Process) -> Row:
    start = process.session_start_utc
    text = start.strftime("%Y-%m-%dT%H:%M:%S")
    # From integers: a float of seconds does not hold milliseconds of this epoch exactly.
    since_epoch = start - datetime(1970, 1, 1, tzinfo=UTC)
    epoch_ns = (since_epoch.days * 86_400 + since_epoch.seconds) * 10**9 + since_epoch.microseconds * 1000
    return {"utcEpochNs": epoch_ns, "utcTime": text, "localTime": text, "systemClockNs": SYSTEM_CLOCK_NS}


def _gpu_uuid(process: Process, gpu: int) -> str:
    return f"{process.rank // GPUS_PER_NODE:08x}-57e3-4007-8000-{gpu:012x}"


def _gpu(process: Process, gpu: int) -> Row:
    limits = {
        "maxRegistersPerBlock": 65_536,
        "maxShmemPerBlock": 49_152,
        "maxShmemPerBlockOptin": 232_448,
        "maxShmemPerSm": 233_472,
        "maxRegistersPerSm": 65_536,
        "maxWarpsPerSm": 64,
        "maxBlocksPerSm": 32,
        "maxThreadsPerBlock": 1024,
        "maxBlockDimX": 1024,
        "maxBlockDimY": 1024,
        "maxBlockDimZ": 64,
        "maxGridDimX": 2_147_483_647,
        "maxGridDimY": 65_535,
        "maxGridDimZ": 65_535,
    }
    return limits | {
        "vmId": process.global_vid & ~(0xFF << 56),
        "id": gpu,
        "name": "NVIDIA H100 80GB HBM3",
        "busLocation": f"0000:{0x18 + 0x10 * gpu:02x}:00.0",
        "isDiscrete": 1,
        "l2CacheSize": 52_428_800,
        "totalMemory": 85_017_755_648,
        "memoryBandwidth": 3_352_320_000_000,
        "clockRate": 1_980_000_000,
        "smCount": 132,
        "pwGpuId": gpu,
        "uuid": _gpu_uuid(process, gpu),
        "luid": 0,
        "chipName": "GH100",
        "cuDevice": gpu,
        "ctxswDevPath": "",
        "ctrlDevPath": "",
        "revision": 161,
        "nodeMask": 0,
        "constantMemory": 65_536,
        "maxIPC": 4,
        "threadsPerWarp": 32,
        "asyncEngines": 3,
        "computeMajor": 9,
        "computeMinor": 0,
        "smMajor": 9,
        "smMinor": 0,
    }
