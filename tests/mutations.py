"""Files spoiled at random, for readers that must not raise whatever they are given."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


def mutated(
    originals: Sequence[bytes], tokens: Sequence[bytes], *, files: int, most_changes: int, seed: int
) -> Iterator[bytes]:
    """The originals in turn, each with bytes changed, cut out, repeated, and tokens put in; deterministic by seed."""
    numbers = random.Random(seed)
    for number in range(files):
        data = bytearray(originals[number % len(originals)])
        for _ in range(numbers.randint(1, most_changes)):
            at = numbers.randrange(len(data))
            match numbers.randrange(4):
                case 0:
                    data[at] = numbers.randrange(256)
                case 1:
                    del data[at : at + numbers.randint(1, 40)]
                case 2:
                    data[at:at] = numbers.choice(tokens)
                case _:
                    data[at:at] = data[: numbers.randint(1, 200)]
            data = data or bytearray(b"x")
        yield bytes(data)
