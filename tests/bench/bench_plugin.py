"""The cost of the pytest plug-in: `python -m tests.bench.bench_plugin [--install]`.

It prints the time of the first test with the fixture `kbroker`, from the end of the collection, when the broker begins
to start, to the end of its clean-up; the median of the next ones, set-up and clean-up included; and the resident memory
of the session's broker at the end. With --install it also installs the checkout into an empty environment, and prints
the time to a passed first test and the size of what was installed.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pytest

CHECKOUT = Path(__file__).parents[2]
MIB = 1 << 20
TESTS = """
import pytest
from pathlib import Path

@pytest.mark.parametrize("number", range(21))
def test(kbroker, number, record_property):
    kbroker.topic("orders")
    (node,) = kbroker.nodes
    (line,) = [line for line in Path(f"/proc/{node.pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    record_property("kib", int(line.split()[1]))
"""
FIRST_TEST = "def test_first(kbroker):\n    assert kbroker.records(kbroker.topic()) == []\n"


class Durations:
    """Adds up what each test took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.kib = 0
        self.first = self._collected = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        self._collected = time.perf_counter()

    def pytest_runtest_logfinish(self) -> None:
        self.first = self.first or time.perf_counter() - self._collected

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert report.passed, report.longreprtext
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        self.kib = dict(report.user_properties).get("kib", self.kib)  # type: ignore[arg-type]


def fixtures(directory: Path) -> None:
    # As an installed package: without byte code on the disk, the first start would compile everything.
    for package in ("kbroker", "wire"):
        assert compileall.compile_dir(str(CHECKOUT / package), quiet=1)
    found = Durations()
    file = directory / "test_fixture.py"
    file.write_text(TESTS)
    words = ["-q", "--rootdir", str(directory), "-c", "/dev/null", "-p", "no:cacheprovider", str(file)]
    assert pytest.main(words, plugins=[found]) == 0
    # The last test stops the broker.
    _, *others, _ = found.seconds.values()
    print(f"{'first test':40} {found.first:8.3f} s    (at most 0.4)")
    print(f"{'next test, median':40} {median(others) * 1000:8.1f} ms   (at most 5)")
    print(f"{'resident memory of the broker':40} {found.kib / 1024:8.1f} MiB  (at most 50)")


def size(directory: Path) -> int:
    return sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())


def install(directory: Path) -> None:
    def call(*words: object) -> None:
        subprocess.run([str(word) for word in words], check=True, cwd=directory, stdout=subprocess.DEVNULL)

    built, environment = directory / "built", directory / "environment"
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    call(sys.executable, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", built, CHECKOUT)
    (wheel,) = built.glob("*.whl")
    call(sys.executable, "-m", "venv", environment)
    before, python = size(environment), environment / "bin" / "python"
    began = time.perf_counter()
    call(python, *pip, "install", wheel)
    installed = size(environment) - before
    call(python, *pip, "install", "pytest")
    (directory / "test_first.py").write_text(FIRST_TEST)
    call(python, "-m", "pytest", "-q", "test_first.py")
    print(f"{'installed to a passed first test':40} {time.perf_counter() - began:8.1f} s    (at most 20)")
    print(f"{'size of what was installed':40} {installed / MIB:8.1f} MiB  (at most 40)")


def main() -> None:
    with TemporaryDirectory() as directory:
        fixtures(Path(directory))
        if "--install" in sys.argv[1:]:
            install(Path(directory))


if __name__ == "__main__":
    main()
