"""Runs the tests of other people's programs on kbroker: `make test-foreign`.

The tests come from each program's sdist, which pip downloads and checks against the hash in requirements/foreign.txt;
nothing of them is in this repository. The plug-in starts the broker, and `compat.foreign.plugin` puts its address into
the variables that these tests read. With KBROKER_BOOTSTRAP_SERVERS they run on another broker, such as Apache Kafka.
The tests of kafka-python start brokers with SASL themselves.

Exit codes: 0 all tests passed, 1 a test failed or a source could not be had.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from compat.foreign import kafka_python

CHECKOUT = Path(__file__).parents[2]
REQUIREMENTS = CHECKOUT / "requirements" / "foreign.txt"
# The sdist of arroyo lacks this module of its tests, so it is written here after what the tests do with it.
ARROYO_ASSERTIONS = """
from contextlib import contextmanager

@contextmanager
def assert_changes(value, before, after):
    assert value() == before
    yield
    assert value() == after

@contextmanager
def assert_does_not_change(value, always):
    with assert_changes(value, always, always):
        yield
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A program on PyPI. Shape: tests are those that use a broker; added are files that its sdist lacks."""

    name: str
    tests: tuple[str, ...]
    added: tuple[tuple[str, str], ...] = ()


PROGRAMS = (
    Program(
        "sentry-arroyo",
        ("tests/backends/test_kafka.py", "tests/backends/test_kafka_producer.py", "tests/test_kip848_e2e.py"),
        (("tests/assertions.py", ARROYO_ASSERTIONS), ("tests/__init__.py", "")),
    ),
    Program("taskiq-aio-kafka", ("tests",)),
    Program("kafka-python", ("test/integration/test_sasl_integration.py",), kafka_python.ADDED),
)


def main() -> int:
    """Run the tests of the programs that are named, by default of all; return the exit code."""
    chosen = [each for each in PROGRAMS if each.name in sys.argv[1:] or not sys.argv[1:]]
    codes = []
    for program in chosen:
        with TemporaryDirectory(prefix="kbroker-foreign-") as directory:
            print(f"\n=== {program.name}", flush=True)
            codes.append(run(program, source(program, Path(directory))))
    return int(any(codes) or not codes)


def source(program: Program, directory: Path) -> Path:
    """Download, check and unpack the sdist of the locked version; return its folder."""
    locked = re.search(rf"^{program.name}==.*?(?=^\S|\Z)", REQUIREMENTS.read_text(), re.MULTILINE | re.DOTALL)
    assert locked is not None, f"{program.name} is not in {REQUIREMENTS.name}"
    wanted = directory / "wanted.txt"
    wanted.write_text(locked[0])
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    hashed = ["--require-hashes", "--no-binary", program.name, "--dest", str(directory), "-r", str(wanted)]
    subprocess.run([*command, *hashed], check=True)
    (archive,) = directory.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")
    folder = directory / archive.name.removesuffix(".tar.gz")
    for name, text in program.added:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)
    return folder


def run(program: Program, folder: Path) -> int:
    """Run the tests in their folder; return pytest's exit code."""
    words = ["-q", "-p", "compat.foreign.plugin", "-p", "no:cacheprovider", "-o", "addopts=", "-W", "ignore"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "KAFKA_VERSION": kafka_python.VERSION}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, *program.tests], cwd=folder, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
