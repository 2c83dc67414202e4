"""What fleet to generate: sizes, seeds and the parameters of every source of spread."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from stemroot_spark.fleet.changes import Change, FleetError


@dataclass(frozen=True)
class FleetSpec:
    """A training fleet and one night of it.

    The duration of a launch is

        base(configuration) * mode * length * warm-up * drift * rank   (from `seed`: the same every night)
        * straggler                                                    (communication only, see below)
        * clock phase * launch noise                                   (from `seed` and `night`)

    rounded to ticks of 32 ns. Spreads are relative standard deviations of lognormal factors with mean 1.

    Attributes:
        ranks, layers, iterations: sizes of the fleet; an iteration is one optimizer step.
        seed: of everything that repeats every night. night: which repetition, 0 being the first.
        launch_noise: spread of a single launch around its base.
        clock_spread, clock_phase_iterations: a rank draws a new clock factor every so many iterations.
        drift: relative slow-down from the middle of the first to the middle of the last iteration.
        rank_spread: spread between GPUs. shape_spread: spread of configurations around the catalogue.
        second_mode_share, second_mode_ratio: share and slowness of the second mode of bimodal configurations.
        length_sigma: of the lognormal sequence length, one per rank and iteration, shared by its layers.
        length_exponent: attention takes length ** length_exponent.
        straggler_share, straggler_tail_index: share of communication launches that wait, with a Pareto factor
            of this tail index (variance infinite below 2).
        stragglers_per_night: waiting is drawn anew every night, as in reality; False repeats it.
        warmup_iterations, warmup_slowdown: the first iterations run up to (1 + 1.5 * slowdown) times as long,
            half as much more with each iteration.
        evaluation_interval_iterations: rare evaluation kernels run once every so many iterations.
        changes: differences of this night, see `changes.parse_change`.

    Raises:
        FleetError: for a value outside its domain, naming the field.
    """

    ranks: int = 8
    layers: int = 8
    iterations: int = 10
    seed: int = 0
    night: int = 0
    launch_noise: float = 0.03
    clock_spread: float = 0.005
    clock_phase_iterations: int = 50
    drift: float = 0.01
    rank_spread: float = 0.01
    shape_spread: float = 0.1
    second_mode_share: float = 0.2
    second_mode_ratio: float = 1.5
    length_sigma: float = 0.6
    length_exponent: float = 1.5
    straggler_share: float = 0.05
    straggler_tail_index: float = 1.6
    stragglers_per_night: bool = True
    warmup_iterations: int = 3
    warmup_slowdown: float = 0.8
    evaluation_interval_iterations: int = 50
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        at_least_one = ("ranks", "layers", "iterations", "clock_phase_iterations")
        for name in (*at_least_one, "evaluation_interval_iterations"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("seed", "night", "warmup_iterations"):
            self._require(name, getattr(self, name) >= 0, "0 or more")
        spreads = ("launch_noise", "clock_spread", "rank_spread", "shape_spread", "length_sigma")
        for name in (*spreads, "warmup_slowdown", "length_exponent"):
            self._require(name, 0 <= getattr(self, name) < math.inf, "a finite number, 0 or more")
        for name in ("second_mode_share", "straggler_share"):
            self._require(name, 0 <= getattr(self, name) < 1, "in [0, 1)")
        self._require("drift", abs(self.drift) < 1, "between -1 and 1")
        self._require("second_mode_ratio", 0 < self.second_mode_ratio < math.inf, "positive")
        self._require(
            "straggler_tail_index", self.straggler_tail_index > 1, "above 1, or the mean is infinite"
        )

    def _require(self, name: str, holds: bool, domain: str) -> None:
        if not holds:
            raise FleetError(f"{name} is {getattr(self, name)!r}, it must be {domain}")

    @property
    def noise_against_base(self) -> float:
        """Relative standard deviation of duration / base over launches of computation kernels, exact.

        Ticks of 32 ns add (32 / sqrt(12) / duration) ** 2 to its square.
        """
        return math.sqrt(self._noise_second_moment - 1)

    @property
    def noise_between_nights(self) -> float:
        """Relative standard deviation of the ratio of two nights of the same launch (the two independent)."""
        return math.sqrt(self._noise_second_moment**2 - 1)

    @property
    def _noise_second_moment(self) -> float:
        return (1 + self.launch_noise**2) * (1 + self.clock_spread**2)

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON values, changes in their command-line form, and the derived noise."""
        values = asdict(self) | {"changes": [str(change) for change in self.changes]}
        derived = {
            "noise_against_base": self.noise_against_base,
            "noise_between_nights": self.noise_between_nights,
        }
        return values | derived


def describe(spec: FleetSpec) -> str:
    """The fields of a specification, one `name = value` a line."""
    names = [field.name for field in fields(spec)]
    values = spec.to_dict()
    return "\n".join(f"{name} = {values[name]}" for name in [*names, *(n for n in values if n not in names)])
