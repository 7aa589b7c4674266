"""All targets, by name."""

from __future__ import annotations

from tests.fuzz import batches, files, messages, node, stored
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target for module in (messages, batches, stored, files, node) for target in module.TARGETS
}


def find(name: str) -> Target:
    """The target with this name. Errors: KeyError."""
    return TARGETS[name]
