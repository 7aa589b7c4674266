"""A certificate authority for TLS tests."""

from __future__ import annotations

import subprocess
from pathlib import Path

from compat.kafka.libraries import executable


def make_authority(directory: Path) -> Path:
    """Fill a directory with an authority, ca.pem, and its certificate for 127.0.0.1: server.pem, server.key."""
    openssl = executable("openssl", hint="install openssl")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)

    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
    run(
        "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority", *usage
    )
    run("req", *key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=store")
    names = "subjectAltName=IP:127.0.0.1\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    (directory / "names").write_text(names)
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names"]
    run("x509", "-req", "-in", "server.csr", "-out", "server.pem", *signing)
    return directory
