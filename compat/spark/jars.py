"""Spark's stock Kafka connector, fetched once by Maven.

`pom.xml` beside this file lists its jars. They go to `${KBROKER_CACHE:-~/.cache/kbroker}/spark-4.0.0/jars`, by a
temporary directory that is renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from compat.kafka.libraries import Unavailable, cache_directory, executable

SPARK_VERSION = "4.0.0"
_POM = Path(__file__).with_name("pom.xml")


def connector_jars() -> list[str]:
    """The paths of the jars; fetches them on the first use.

    Errors: Unavailable when there is no Maven, or Maven cannot fetch them.
    """
    target = cache_directory() / f"spark-{SPARK_VERSION}" / "jars"
    if not target.is_dir():
        maven = executable("mvn", hint="install Maven")
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix="jars-"))
        try:
            goal = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch / 'jars'}"]
            done = subprocess.run(
                [maven, "-q", "-B", "-f", str(_POM), *goal], capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise Unavailable(f"Maven cannot fetch Spark's connector: {(done.stdout + done.stderr)[-1000:]}")
            with contextlib.suppress(OSError):  # another run was quicker
                (scratch / "jars").rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return sorted(str(jar) for jar in target.glob("*.jar"))
