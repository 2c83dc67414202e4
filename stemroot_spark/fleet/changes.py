"""Changes on demand: what differs between a night and the fleet it repeats."""

import re
from dataclasses import dataclass

from stemroot_spark.errors import UsageError

SYNTAX = (
    "'NAME_SUBSTRING:factor=0.8' (every kernel whose name contains it), "
    "'NAME_SUBSTRING@CONFIG_INDEX:factor=1.4' (one launch configuration of one kernel) or "
    "'new:NAME:share=0.02' (a kernel that was not there)"
)
_FACTOR = re.compile(r"^(?P<name>.+?)(?:@(?P<config>\d+))?:factor=(?P<value>[^:=]+)$", re.DOTALL)
_NEW = re.compile(r"^new:(?P<name>.+):share=(?P<value>[^:=]+)$", re.DOTALL)


class FleetError(UsageError):
    """A fleet that cannot be generated; the message says what to change."""

    code = "fleet"


@dataclass(frozen=True)
class FactorChange:
    """Multiplies the base duration of a kernel class, or of one launch configuration, by `factor`."""

    name_substring: str
    factor: float
    config_index: int | None = None

    def __str__(self) -> str:
        where = "" if self.config_index is None else f"@{self.config_index}"
        return f"{self.name_substring}{where}:factor={self.factor!r}"


@dataclass(frozen=True)
class NewKernelChange:
    """Adds one kernel, launched once per layer, taking `share` of the computation time of an iteration."""

    name: str
    share: float

    def __str__(self) -> str:
        return f"new:{self.name}:share={self.share!r}"


Change = FactorChange | NewKernelChange


def parse_change(text: str) -> Change:
    """Read one change from its command-line form.

    Kernel names may hold colons: only the last `:key=value` is the instruction.
    Raises FleetError for another syntax, a factor that is not positive, or a share outside (0, 1).
    """
    if match := _NEW.match(text):
        share = _number(match["value"], text)
        if not 0 < share < 1:
            raise FleetError(f"change {text!r}: share is {share}, give a number between 0 and 1")
        return NewKernelChange(match["name"], share)
    if match := _FACTOR.match(text):
        factor = _number(match["value"], text)
        if not 0 < factor < float("inf"):
            raise FleetError(f"change {text!r}: factor is {factor}, give a positive number")
        config_index = None if match["config"] is None else int(match["config"])
        return FactorChange(match["name"], factor, config_index)
    raise FleetError(f"change {text!r} is not understood; write {SYNTAX}")


def _number(value: str, text: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise FleetError(f"change {text!r}: {value!r} is not a number") from None
