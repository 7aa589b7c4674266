"""All targets, by name. A module is imported when one of its targets is used: atheris instruments it then."""

from __future__ import annotations

from importlib import import_module

from tests.fuzz.target import Target

# The modules with targets, with what atheris instruments for them. Each module of kbroker takes 20 ms.
INSTRUMENTED = {
    "messages": ["wire"],
    "batches": ["wire", "kbroker.storage"],
    "stored": ["wire", "kbroker.coordinator", "kbroker.controller", "kbroker.tiered"],
    "files": ["kbroker.storage", "kbroker.tiered", "kbroker.controller"],
    "logins": ["kbroker.security", "kbroker.config.sasl"],
    "node": ["h11", "kbroker.server", "kbroker.handlers", "kbroker.web"],
}
MODULES = {
    "frames": "messages",
    "requests": "messages",
    "responses": "messages",
    "batches": "batches",
    "blocks": "batches",
    "control": "batches",
    "stored": "stored",
    "files": "files",
    "sasl": "logins",
    "broker": "node",
    "pages": "node",
}


def find(name: str) -> Target:
    """The target with this name. Errors: KeyError."""
    module = import_module(f"tests.fuzz.{MODULES[name]}")
    found: Target = next(target for target in module.TARGETS if target.name == name)
    return found
