"""A kernel, its launch configurations, and the classes of sequence length."""

import re
from dataclasses import dataclass

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchConfig:
    """One launch configuration of a kernel, and how long a launch takes in its faster mode."""

    duration_us: float
    grid: Dim3
    block: Dim3
    dynamic_shared_memory_bytes: int = 0
    cluster: Dim3 = (0, 0, 0)
    is_bimodal: bool = False


@dataclass(frozen=True)
class Kernel:
    """A kernel as nsys names it.

    A kernel that `follows_length` has one configuration per length class (`LENGTH_CLASS_LIMITS`), and its
    duration grows with the sequence length.
    """

    key: str
    name: str
    configs: tuple[LaunchConfig, ...]
    registers_per_thread: int = 32
    static_shared_memory_bytes: int = 0
    is_communication: bool = False
    follows_length: bool = False
    uses_driver_api: bool = False

    @property
    def short_name(self) -> str:
        """The bare function name: no return type, namespaces, template arguments or parameters."""
        text = self.name.replace("(anonymous namespace)", "unnamed")
        depth, kept = 0, []
        for character in text:
            if character in "<(":
                depth += 1
            if depth == 0:
                kept.append(character)
            if character in ">)":
                depth -= 1
        return "".join(kept).strip().split("::")[-1].split()[-1]

    @property
    def mangled_name(self) -> str:
        """A stand-in in the style of the Itanium ABI; a C name is its own mangled name."""
        if re.fullmatch(r"\w+", self.name):
            return self.name
        short = self.short_name
        return f"_ZN2at6native{len(short)}{short}I{len(self.name)}{self.key}EEviT_"


MEDIAN_LENGTH_TOKENS = 2048
LENGTH_CLASS_LIMITS = (512, 1024, 2048, 4096, 8192)
"""A length belongs to the first class whose limit it does not exceed, else to a last, open one."""


def config(
    duration_us: float,
    grid: int | Dim3,
    block: int | Dim3,
    dynamic_shared_memory_bytes: int = 0,
    cluster: Dim3 = (0, 0, 0),
    is_bimodal: bool = False,
) -> LaunchConfig:
    """A launch configuration; a plain number is an extent in x."""
    grid3 = (grid, 1, 1) if isinstance(grid, int) else grid
    block3 = (block, 1, 1) if isinstance(block, int) else block
    return LaunchConfig(duration_us, grid3, block3, dynamic_shared_memory_bytes, cluster, is_bimodal)


def by_length(
    duration_us: float, heads: int, rows: int, block: int, shared_bytes: int
) -> tuple[LaunchConfig, ...]:
    """One configuration per length class, a block for every `rows` tokens of each head."""
    longest = (*LENGTH_CLASS_LIMITS, 4 * LENGTH_CLASS_LIMITS[-1])
    return tuple(config(duration_us, (-(-n // rows), 1, heads), block, shared_bytes) for n in longest)
