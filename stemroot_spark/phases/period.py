"""The period of a launch sequence: iterations of a trace that has no ranges.

A sequence is periodic where a stretch of it repeats exactly, back to back. What comes before is prologue. Later
periods may hold a few launches more, fewer or others than that template, as evaluation, logging and autotuning make
them. Longer irregular pieces belong to no iteration and end a steady stretch. Nothing in a sequence tells a capture
of one forward pass through equal layers from one of equal iterations: there the layers are counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stemroot_spark.phases.patterns import NONE
from stemroot_spark.phases.template import FEWEST_PERIODS, Stretch, Template, divide

Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]

# Launches that the search for the lag looks at, from the middle of a longer sequence.
_SEARCHED = 1 << 19
_RANDOM_CODES = 4
# Random codes put this much noise on the share of matches at a lag; the shares that decide are counted exactly.
_NOISE = 0.05
_MOST_COUNTED = 256
_MOST_DIVIDED = 8
# A longer period must explain this much more of the sequence than a shorter one: it is no cycle of iterations
# with an evaluation now and then, but the shorter one is a cycle of layers inside it.
_SIGNIFICANT_SHARE = 0.005
# Least share of the launches that the periods cover. The layers of the backward pass cover more than half of an
# iteration, so that less would take them for iterations where a capture holds one or two.
_LEAST_COVERED = 0.75
_SEED = 20_250_101


@dataclass(frozen=True)
class Periods:
    """Per launch the period it belongs to and the steady stretch of it, both from 0, NONE outside."""

    iteration: Ints
    stretch: Ints


def periods(kernel_id: Ints) -> Periods:
    """Number the periods of a sequence of kernels, given in order of launch.

    Later stretches continue the count of earlier ones. All is NONE where no period explains most of the sequence.
    """
    codes = np.unique(kernel_id, return_inverse=True)[1].astype(np.int32)
    iteration, stretch = np.full(len(codes), NONE, np.int64), np.full(len(codes), NONE, np.int64)
    n_before = 0
    for number, (starts, end) in enumerate(_best_division(codes)):
        sizes = np.diff(np.append(starts, end))
        iteration[starts[0] : end] = n_before + np.repeat(np.arange(len(starts)), sizes)
        stretch[starts[0] : end] = number
        n_before += len(starts)
    return Periods(iteration, stretch)


def _best_division(codes: Codes) -> list[Stretch]:
    """Stretches of the shortest period that explains about as much as any, none where all explain little."""
    divisions: list[tuple[float, list[Stretch]]] = []
    for lag in _lags(codes):
        template = Template.at_lag(codes, lag)
        stretches = divide(codes, template) if template is not None else []
        if stretches and not _is_nested(stretches):
            covered = sum(end - int(starts[0]) for starts, end in stretches)
            divisions.append((covered / len(codes), stretches))
    most = max((covered for covered, _ in divisions), default=0.0)
    if most < _LEAST_COVERED:
        return []
    return next(stretches for covered, stretches in divisions if covered >= most - _SIGNIFICANT_SHARE)


def _is_nested(stretches: list[Stretch]) -> bool:
    """Whether stretches look like the layers of a model, as many in every iteration."""
    return len(stretches) > 1 and len({len(starts) for starts, _ in stretches}) == 1


def _lags(codes: Codes) -> list[int]:
    """Lags worth trying, ascending, each matching more launches with the one a lag later than all before it."""
    middle = max(0, (len(codes) - _SEARCHED) // 2)
    codes = codes[middle : middle + _SEARCHED]
    longest = len(codes) // FEWEST_PERIODS
    if longest < 2:
        return []
    share = _share_of_matches(codes, longest)
    likely = np.flatnonzero(share >= np.maximum.accumulate(share) - _NOISE) + 2
    best = np.argsort(share, kind="stable")[::-1][:_MOST_COUNTED] + 2
    # Any multiple of a period matches as well as the period itself.
    divisors = [
        int(lag) // k for lag in best[:32] for k in range(1, 65) if int(lag) % k == 0 and int(lag) // k > 1
    ]
    records: list[tuple[float, int]] = []
    for lag in np.unique(np.concatenate([likely[:_MOST_COUNTED], best[:32], divisors])).tolist():
        exact = float(np.mean(codes[lag:] == codes[:-lag]))
        if not records or exact > records[-1][0]:
            records.append((exact, lag))
    top = records[-1][0] if records else 0.0
    return [lag for exact, lag in records if exact >= top / 2][-_MOST_DIVIDED:]


def _share_of_matches(codes: Codes, longest: int) -> npt.NDArray[np.float64]:
    """Estimated share of launches equal to the one a lag later, for lags 2 to ``longest``.

    Kernels get random signs: the product of two is 1 for equal kernels and 0 on average for others. The sum of
    products at all lags is an autocorrelation, which the Fourier transform gives in n log n (Wiener-Khinchin).
    """
    n, n_kernels = len(codes), int(codes.max()) + 1
    if n_kernels <= _RANDOM_CODES:
        # An indicator of each kernel costs no more and is exact.
        values, scale = np.eye(n_kernels), 1.0
    else:
        random = np.random.default_rng(_SEED)
        values = random.choice(np.array([-1.0, 1.0]), (_RANDOM_CODES, n_kernels))
        scale = 1.0 / _RANDOM_CODES
    size = 1 << (n + longest - 1).bit_length()
    total = np.zeros(longest - 1)
    for value in values:
        spectrum = np.fft.rfft(value[codes].astype(np.float32), size)
        total += np.fft.irfft(spectrum * spectrum.conj(), size)[2 : longest + 1]
    return scale * total / (n - np.arange(2, longest + 1))
