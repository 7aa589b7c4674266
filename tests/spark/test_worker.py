from __future__ import annotations

import fcntl
import importlib
import socket
import struct
import subprocess
import sys
import termios
import zipfile
from pathlib import Path

import pytest

from kbroker.spark.worker import acknowledge


def test_zip_imports_work_without_rereading_the_directory(tmp_path: Path) -> None:
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("package/__init__.py", "")
        file.writestr("package/first.py", "")
        file.writestr("package/second.py", "")
    # In a separate process, because the test changes a cache of all imports.
    script = (
        "import importlib, sys, zipimport\n"
        "import package.first\n"
        "from kbroker.spark.worker import forget_zip_finders\n"
        "assert any(isinstance(each, zipimport.zipimporter) for each in sys.path_importer_cache.values())\n"
        "forget_zip_finders()\n"
        "before = zipimport._zip_directory_cache[sys.argv[1]]\n"
        "importlib.invalidate_caches()\n"
        "assert zipimport._zip_directory_cache[sys.argv[1]] is before\n"
        "import package.second\n"
        "print(package.second.__file__)\n"
    )
    path = [str(archive), str(Path(importlib.import_module("kbroker").__path__[0]).parent)]
    done = subprocess.run(
        [sys.executable, "-c", script, str(archive)],
        env={"PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.strip() == f"{archive}/package/second.py"


def test_only_objects_of_the_first_task_are_frozen() -> None:
    script = (
        "import gc\n"
        "from kbroker.spark.worker import settle\n"
        "gc.disable()\n"
        "settle()\n"
        "frozen = gc.get_freeze_count()\n"
        "class Node: pass\n"
        "node = Node(); node.itself = node; del node\n"
        "settle()\n"
        "print(frozen > 1000, gc.get_freeze_count() <= frozen, gc.collect() > 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("True True True", "")


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has this option")
def test_received_bytes_are_acknowledged_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as spark:
        worker, _ = listener.accept()
        with worker:
            for _ in range(20):  # the kernel delays acknowledgements on connections that send in both directions
                spark.sendall(b"task")
                worker.recv(4)
                worker.sendall(b"rows")
                spark.recv(4)
            spark.sendall(b"command")
            worker.recv(7)
            acknowledge()
            assert unacknowledged(spark) == 0


def unacknowledged(sender: socket.socket) -> int:
    """The number of sent bytes that the receiver's kernel has not acknowledged."""
    return int(struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, bytes(4)))[0])
