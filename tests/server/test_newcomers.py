"""Newcomers agree with a slow model that looks at all connections."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kbroker.server.newcomers import Newcomers


@given(st.lists(st.one_of(st.sampled_from("abcd"), st.integers(0, 40)), max_size=60), st.integers(0, 60))
def test_the_oldest_of_an_address_with_most_is_the_suspect(steps: list[str | int], accepted_by_ms: int) -> None:
    """A letter is the address of a new connection, a number is the connection that goes."""
    newcomers: Newcomers[int] = Newcomers()
    model: dict[int, str] = {}  # a connection's number is also the time of its accept
    for number, step in enumerate(steps):
        if isinstance(step, str):
            newcomers.add(number, step, number)
            model[number] = step
        else:
            newcomers.discard(step)
            model.pop(step, None)
        assert len(newcomers) == len(model)
        assert newcomers.oldest_ms() == min(model, default=math.inf)
        counts = Counter(model.values())
        most = {address for address, count in counts.items() if count == max(counts.values())}
        oldest = {min(one for one in model if model[one] == address) for address in most}
        suspect = newcomers.suspect()
        assert suspect in oldest if model else suspect is None
        old_enough = newcomers.suspect(accepted_by_ms=accepted_by_ms)
        if suspect is not None and suspect <= accepted_by_ms:
            assert old_enough == suspect
        else:
            assert old_enough == min((one for one in model if one <= accepted_by_ms), default=None)


def test_of_many_addresses_with_one_each_the_oldest_is_the_suspect() -> None:
    newcomers: Newcomers[int] = Newcomers()
    for number in range(100):
        newcomers.add(number, f"192.0.2.{number}", number)
    for number in range(100):
        assert newcomers.suspect() == number
        newcomers.discard(number)
    assert newcomers.suspect() is None
