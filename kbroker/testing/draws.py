"""Random choices that depend only on their key.

Every generated workload, crash and fault draws from its own stream, whose key is its purpose (a seed, a name, a
number). There is no shared generator. Removing one step from a plan therefore leaves the choices of all others
unchanged, so a failing plan can be reduced by hand or by machine, and a printed seed repeats a run on every machine.

The stream is SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014), started from a
BLAKE2b hash of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeVar

T = TypeVar("T")

_MASK = (1 << 64) - 1


class Draws:
    """A stream of choices.

    Shape   the key is any number of ints and strings; equal keys give equal streams, different keys independent ones
    Units   `below(n)` is an int in [0, n); `chance(p)` is True with probability p
    """

    __slots__ = ("_state",)

    def __init__(self, *key: int | str) -> None:
        self._state = int.from_bytes(blake2b(repr(key).encode(), digest_size=8).digest(), "big")

    def word(self) -> int:
        """64 random bits."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def below(self, bound: int) -> int:
        """An int in [0, bound); the bias of the remainder is below 2**-32 for every bound used here."""
        return self.word() % bound

    def between(self, least: int, most: int) -> int:
        """An int in [least, most]."""
        return least + self.below(most - least + 1)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.word() < probability * (1 << 64)

    def choice(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def weighted(self, options: Sequence[tuple[T, int]]) -> T:
        """One of the options, with probabilities in proportion to the weights."""
        at = self.below(sum(weight for _, weight in options))
        for option, weight in options:
            if at < weight:
                return option
            at -= weight
        raise AssertionError("the weights were summed wrongly")

    def bytes(self, size: int) -> bytes:
        """Bytes that do not compress."""
        return b"".join(self.word().to_bytes(8, "big") for _ in range(-(-size // 8)))[:size]
