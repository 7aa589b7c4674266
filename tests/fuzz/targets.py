"""All targets, by name. A module is imported when one of its targets is used."""

from __future__ import annotations

from importlib import import_module

from tests.fuzz.target import Target

# The modules with targets, with the packages that atheris instruments for them.
INSTRUMENTED = {
    "messages": ["wire"],
    "batches": ["wire", "kbroker.storage"],
    "stored": ["wire", "kbroker.coordinator", "kbroker.controller", "kbroker.tiered"],
    "files": ["kbroker.storage", "kbroker.tiered", "kbroker.controller"],
    "logins": ["kbroker.security", "kbroker.config.sasl"],
    "acls": ["kbroker.security"],
    "connections": [
        "wire",
        "h11",
        "kbroker.server",
        "kbroker.security",
        "kbroker.handlers",
        "kbroker.quorum",
        "kbroker.web",
        "kbroker.coordinator",
    ],
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
    "acls": "acls",
    "certificates": "acls",
    "broker": "connections",
    "controller": "connections",
    "login": "connections",
    "rights": "connections",
    "pages": "connections",
}


def find(name: str) -> Target:
    """The target with this name. Errors: KeyError."""
    module = import_module(f"tests.fuzz.{MODULES[name]}")
    found: Target = next(target for target in module.TARGETS if target.name == name)
    return found
