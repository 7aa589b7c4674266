"""MinIO's real server, for tests: built once from the Go module proxy, started on its own port.

`$KBROKER_MINIO` names an existing binary. Otherwise the binary is in `${KBROKER_CACHE:-~/.cache/kbroker}`, where
`python -m compat.minio` builds it, which needs Go and takes some minutes; `.ci/run` does. Tests do not build it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from compat import golang
from compat.brokers import StartFailed, end, free_port
from compat.kafka.libraries import Unavailable, cache_directory

VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
BUCKET = "kbroker"
START_TIMEOUT_S = 60.0


def cached_binary() -> Path:
    """The path of the build."""
    return cache_directory() / f"minio-{VERSION}" / "minio"


def binary() -> Path:
    """MinIO's server. Errors: Unavailable, with how to get it."""
    given = os.environ.get("KBROKER_MINIO")
    found = Path(given) if given else cached_binary()
    if not os.access(found, os.X_OK):
        raise Unavailable(
            f"{found} is not a program (install Go and run `python -m compat.minio`, or set KBROKER_MINIO)"
        )
    return found


def build() -> Path:
    """Build the server if it is missing. Errors: Unavailable without Go, or if Go cannot build it."""
    with contextlib.suppress(Unavailable):
        return binary()
    golang.install(f"github.com/minio/minio@{VERSION}", cached_binary().parent)
    return binary()


class MinioServer:
    """One server with one drive. Its data survives `kill` and `stop`; `start` again keeps port and keys.

    Shape  tls: (certificate, key), PEM files
    """

    def __init__(self, directory: Path, *, tls: tuple[Path, Path] | None = None, port: int = 0) -> None:
        self.directory, self._tls = directory, tls
        self.port = port or free_port()
        self.access_key, self.secret_key = "operator", secrets.token_urlsafe(24)
        self.process: subprocess.Popen[bytes] | None = None
        self._log = directory / "minio.log"

    @property
    def endpoint(self) -> str:
        """The URL."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def settings(self, **more: str) -> dict[str, str]:
        """Settings of the plug-in, without `rsm.config.`; underscores stand for dots."""
        keys = {"access.key": self.access_key, "secret.key": self.secret_key}
        given = {name.replace("_", "."): value for name, value in more.items()}
        return {"endpoint": self.endpoint, "bucket": BUCKET, **keys, **given}

    def start(self) -> None:
        """Start it and wait until it serves. Errors: StartFailed."""
        data, certificates = self.directory / "data", self.directory / "certs"
        for directory in (data, certificates):
            directory.mkdir(parents=True, exist_ok=True)
        if self._tls:
            for source, name in zip(self._tls, ("public.crt", "private.key"), strict=True):
                shutil.copy(source, certificates / name)
        command = [str(binary()), "server", str(data), "--address", f"127.0.0.1:{self.port}"]
        command += ["--certs-dir", str(certificates), "--quiet", "--anonymous"]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self._environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._serves():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise StartFailed(f"MinIO does not start:\n{self.log_tail()}")
            time.sleep(0.02)

    def _environment(self) -> Mapping[str, str]:
        quiet = {"MINIO_BROWSER": "off", "MINIO_UPDATE": "off", "HOME": str(self.directory)}
        keys = {"MINIO_ROOT_USER": self.access_key, "MINIO_ROOT_PASSWORD": self.secret_key}
        return {"PATH": os.environ.get("PATH", ""), **quiet, **keys}

    def _serves(self) -> bool:
        """Whether it rejects an unknown key: a server that reports ready may still answer 503 to all requests, and ask
        clients to retry in a minute.
        """
        try:
            urllib.request.urlopen(f"{self.endpoint}/", timeout=2).close()
        except urllib.error.HTTPError as error:
            error.close()
            return error.code == 403
        except OSError as error:
            return "CERTIFICATE_VERIFY_FAILED" in str(error)
        return True

    def suspend(self) -> None:
        """SIGSTOP: it accepts connections but does not answer; takes effect with a delay on a busy machine."""
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """`kill -9`."""
        if self.process is not None:
            end(self.process, signal_number=signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM."""
        if self.process is not None:
            end(self.process)

    def log_tail(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""


def main() -> int:
    """Build the server if it is missing and print its path."""
    try:
        print(build())
    except Unavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
