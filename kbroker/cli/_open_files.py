"""Warnings about files of a broker that every user of the machine can read or replace."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kbroker.config import Settings
from kbroker.config.load import is_password
from kbroker.config.properties import parse_properties

_HOLD_SECRETS: Final = (
    "ssl.keystore.location",
    "kbroker.bootstrap.users.file",
    "kbroker.jaas.file",
    "kbroker.http.token.file",
    "rsm.config.credentials.file",
)


def file_warnings(settings: Settings, config: Path | None) -> Iterator[str]:
    """Lines for the log. Shape: config is the settings file."""
    named = settings.layers.static.items()
    found = [Path(text) for name, text in named if name.endswith(_HOLD_SECRETS) and text]
    if config is not None and _has_passwords(config):
        found.append(config)
    if exposed := [str(path) for path in dict.fromkeys(found) if _others_may(path, stat.S_IROTH)]:
        yield f"every user of this machine can read {', '.join(exposed)}, which hold secrets: chmod o= them"
    if _others_may(data := Path(settings.data_directory), stat.S_IWOTH):
        yield f"every user of this machine can replace the files in the data directory {data}: chmod o= it"


def _has_passwords(config: Path) -> bool:
    """Whether a settings file has passwords; False for a pipe, which can be read only once."""
    try:
        data = config.read_bytes() if config.is_file() else b""
    except OSError:
        return False
    return any(map(is_password, parse_properties(data, file_name=str(config))))


def _others_may(path: Path, wanted: int) -> bool:
    """Whether users who are neither the owner nor in the group have a right; False if this process cannot tell."""
    try:
        real = path.resolve(strict=True)
        return bool(real.stat().st_mode & wanted) and all(above.stat().st_mode & stat.S_IXOTH for above in real.parents)
    except OSError:
        return False
