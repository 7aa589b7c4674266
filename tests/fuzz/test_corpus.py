"""The seeds and the kept inputs of every fuzz target, with exact bounds on the work and the memory of each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbroker.metadata.principal import Principal
from kbroker.security.acls import AclTable
from kbroker.security.authorizing import Operation, ResourceType
from kbroker.security.sasl import Step
from kbroker.security.sasl.session import SaslSession, State
from kbroker.web.gate import Gate
from tests.fuzz.connections import log_in
from tests.fuzz.node import node
from tests.fuzz.target import Target, allocated_bytes, inputs, kept
from tests.fuzz.targets import MODULES, find

TARGETS = {name: find(name) for name in MODULES}
MOST_INPUTS = 250
"""A bound on the file of a target in the repository."""


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_inputs_meet_no_undeclared_error(target: Target) -> None:
    assert inputs(target)
    run_all(target)
    assert len(kept(target.name)) <= MOST_INPUTS


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_work_and_memory_are_in_proportion_to_the_input(target: Target) -> None:
    """W4, W6, W7: executed lines and allocated bytes, which are the same on every machine."""
    found = inputs(target)
    most = 150 if target.ratio == 1 else 40  # inputs of a whole node take longer
    for data in found[:: max(1, len(found) // most)]:
        target.run(data)  # compiles the codec
        target.check_lines(data)
        allocated = allocated_bytes(target, data)
        assert allocated <= target.allocated[0] + target.allocated[1] * len(data), data.hex()


def test_a_login_with_the_password_reaches_the_broker() -> None:
    """Otherwise the inputs of the target would never get past the login."""
    served = [log_in(data) for data in find("login").seeds()]
    assert served[:4] == [1, 0, 1, 1]  # the last one: a refused second login leaves the session as it was
    assert served[9:13] == [1, 0, 1, 1], "the same after a handshake of TLS"
    assert sum(served) == 8, "and a signed token on both listeners"


async def anybody(session: SaslSession, _token: bytes) -> tuple[Step, int]:
    """Accepts every token."""
    session.principal, session.state = Principal("User", "alice"), State.COMPLETE
    return Step(b"", "alice"), 0


def readable(_table: AclTable, _principal: str, _host: str, kind: int, _name: str) -> tuple[int, int]:
    """Lets every client read every topic."""
    return (kind == ResourceType.TOPIC) << Operation.READ, 0


@pytest.mark.parametrize(
    ("target", "defect", "why"),
    [
        ("rights", (AclTable, "decide", lambda *_: (1 << Operation.DESCRIBE, 0)), "may not describe"),
        ("rights", (AclTable, "decide", readable), "a record of a topic that"),
        ("rights", (AclTable, "decide", lambda *_: (-1 << Operation.WRITE, 0)), "may not|may change nothing"),
        ("login", (SaslSession, "authenticate", anybody), "served before a login"),
        ("pages", (Gate, "admits", lambda *_: True), "a page without the token"),
        ("acls", (AclTable, "allows_any", lambda *_: True), "a right on some resource|a wrong answer"),
    ],
)
def test_targets_see_a_gate_that_is_always_open(
    monkeypatch: pytest.MonkeyPatch, target: str, defect: tuple[type, str, Callable[..., object]], why: str
) -> None:
    """With a defect that lets everything through, the target fails."""
    monkeypatch.setattr(*defect)
    try:
        with pytest.raises(AssertionError, match=why):
            run_all(TARGETS[target])
    finally:
        node().is_spent = True


def run_all(target: Target) -> None:
    """Run all inputs."""
    for data in inputs(target):
        target.run(data)
