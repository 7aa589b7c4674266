"""The checksum, and how its extension module is loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from wire.crc32c import crc32c


def output(code: str, *path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_checksum_can_be_computed_in_parts() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(memoryview(b"56789"), crc32c(b"1234")) == 0xE3069283


def test_the_init_of_the_package_does_not_run() -> None:
    assert output("import sys, wire.crc32c; print({'crc32c', 'importlib.metadata'} & set(sys.modules))") == "set()"


def test_the_package_can_be_imported_too() -> None:
    assert output("import wire.crc32c, crc32c; print(crc32c.crc32c(b'1') == wire.crc32c.crc32c(b'1'))") == "True"


def test_a_package_without_the_extension_is_imported(tmp_path: Path) -> None:
    (tmp_path / "crc32c.py").write_text("def crc32c(data, value=0): return 7")
    assert output("import wire.crc32c; print(wire.crc32c.crc32c(b''))", tmp_path) == "7"
