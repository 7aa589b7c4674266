"""Start the image's command many times in a row: `python -m compat.image.starts --starts 100`.

Each start has to become ready, to pass the image's health check and to stop cleanly within Docker's ten seconds. Every
second start reuses the data of the one two before it; the others begin with an empty directory. Prints the times; the
exit status is 1 at the first failure.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from compat.image.building import READY, CannotBuild, Container, Images

DOCKER_STOP_SECONDS = 10


def start_once(container: Container, number: int) -> float:
    """One start and stop; returns the seconds until it was ready. Errors: AssertionError."""
    variables = {"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0"}
    if number % 2:
        variables["KAFKA_LOG_DIRS"] = f"/tmp/data-{number}"
    began = time.monotonic()
    with container.running("/etc/kafka/docker/run", **variables) as running:
        running.wait_for(READY)
        took = time.monotonic() - began
        code, said = container.run("/etc/kafka/docker/health")
        assert code == 0, f"start {number}: not healthy: {said}"
        began = time.monotonic()
        code = running.stop()
        assert code == 0, f"start {number} ended with {code}:\n{running.log}"
        assert "stopped" in running.log, f"start {number} did not stop cleanly:\n{running.log}"
        assert time.monotonic() - began < DOCKER_STOP_SECONDS, f"start {number} took too long to stop"
    return took


def main() -> int:
    """Build the image, start it; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=100, metavar="N")
    options = parser.parse_args()
    try:
        images = Images(Path(tempfile.mkdtemp(prefix="kbroker-image-")))
    except CannotBuild as error:
        print(error, file=sys.stderr)
        return 1
    try:
        images.build()
        container = images.container()
        took = []
        for number in range(options.starts):
            took.append(start_once(container, number))
            print(f"start {number}: ready after {took[-1] * 1000:.0f} ms", flush=True)
    except AssertionError as failure:
        print(failure, file=sys.stderr)
        return 1
    finally:
        images.discard()
    print(f"{len(took)} starts without a failure; ready after {statistics.median(took) * 1000:.0f} ms in the median, "
          f"{max(took) * 1000:.0f} ms at most")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
