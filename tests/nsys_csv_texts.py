"""nsys CSV exports written by hand, and what the reader makes of them, for its tests."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from stemroot_spark.sources.events import EVENT_SCHEMA
from stemroot_spark.sources.nsys_csv import read_batches

HEADER = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),"
    "Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name"
)


ROW = "1000,250,7,8,4,2,128,1,1,32,0.000,0.049,,,,,NVIDIA H100 NVL (3),1,,13,"


NAME = '"void gemm<float, 4>(int, (anonymous namespace)::Shape)"'


COPY = "900,50,6,,,,,,,,,,0.108,2.000,Pageable,Device,NVIDIA H100 NVL (3),1,,13,[CUDA memcpy Host-to-Device]"


KERNELS = f"{ROW}{NAME}\n{COPY}\n{ROW.replace('1000,250,7', '2000,251,8')}triton_poi_fused_0\n"


TRACE = f"{HEADER}\n{KERNELS}"


EXECUTION_HEADER = (
    "API Start (ns),API Dur (ns),Queue Start (ns),Queue Dur (ns),Kernel Start (ns),Kernel Dur (ns),Total Dur (ns),PID,"
    "TID,DevId,API Function,GridXYZ,BlockXYZ,Kernel Name"
)


EXECUTION = (
    f"{EXECUTION_HEADER}\n"
    "10,20,,,1000,250,300,2344,2345,3,cudaLaunchKernel,   8    4    2, 128    1    1,"
    f"{NAME}\n"
    "40,20,60,10,2000,251,300,2344,2345,3,cuLaunchKernelEx,   8    4    2, 128    1    1,triton_poi_fused_0\n"
)


SUMMARIES = {
    "cuda_gpu_kern_sum": "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name",
    "cuda_gpu_kern_gb_sum": (
        "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),GridXYZ,BlockXYZ,Name"
    ),
    "gpukernsum": "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name",
    "gpukernsum with deviation": "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,StdDev,Name",
}
NOISE = (
    "Generating SQLite file x.sqlite from x.nsys-rep\n"
    "NOTICE: Existing SQLite export found: x.sqlite\n"
    "Processing [x.sqlite] with [/opt/nsys/reports/{}.py]... \n\n"
)


def csv_stream(text: str | bytes) -> io.BytesIO:
    return io.BytesIO(text.encode() if isinstance(text, str) else text)


def csv_rows(text: str | bytes) -> list[dict[str, Any]]:
    table = pa.Table.from_batches(list(read_batches(csv_stream(text), 2)), schema=EVENT_SCHEMA)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
