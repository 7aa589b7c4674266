"""The seeds and the kept inputs of every fuzz target, with exact bounds on the work and the memory of each."""

from __future__ import annotations

import pytest

from tests.fuzz.connections import log_in
from tests.fuzz.target import Target, allocated_bytes, inputs, kept
from tests.fuzz.targets import MODULES, find

TARGETS = {name: find(name) for name in MODULES}
MOST_INPUTS = 250
"""A bound on the file of a target in the repository."""


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_inputs_meet_no_undeclared_error(target: Target) -> None:
    found = inputs(target)
    assert found
    for data in found:
        target.run(data)
    assert len(kept(target.name)) <= MOST_INPUTS


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_work_and_memory_are_in_proportion_to_the_input(target: Target) -> None:
    """W4, W6, W7: executed lines and allocated bytes, which are the same on every machine."""
    for data in inputs(target)[:: max(1, len(inputs(target)) // 80)]:
        target.run(data)  # compiles the codec
        target.check_lines(data)
        allocated = allocated_bytes(target, data)
        assert allocated <= target.allocated[0] + target.allocated[1] * len(data), data.hex()


def test_a_login_with_the_password_reaches_the_broker() -> None:
    """Or else no input of the target could."""
    served = [log_in(data) for data in find("login").seeds()]
    assert served[:4] == [1, 0, 1, 1]  # the last one: a refused second login leaves the session as it was
    assert served[9:13] == [1, 0, 1, 1], "the same after a handshake of TLS"
    assert sum(served) == 8, "and a signed token on both listeners"
