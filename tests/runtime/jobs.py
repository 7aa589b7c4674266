"""Functions for worker processes, which import only this module."""

from __future__ import annotations

import os
import signal
import sys
import time

from kbroker.runtime.disk import RealDisk, RealFile
from kbroker.runtime.ports import Buffer
from wire.errors import ErrorCode, KafkaError


def modules() -> list[str]:
    return sorted(sys.modules)


def open_file(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def refuse(code: int, message: str) -> None:
    raise KafkaError(ErrorCode(code), message)


def print_something() -> int:
    sys.stdout.write("this is no reply")
    sys.stdout.flush()
    return os.getpid()


def answer(reply: bytes, asking_pid: int) -> str:
    """Write bytes into the pipe for replies, but only in a worker."""
    if os.getpid() != asking_pid:
        os.write(3, reply)
        os._exit(0)
    return "done by the caller"


def die(asking_pid: int) -> int:
    if os.getpid() != asking_pid:
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def die_once(path: str) -> int:
    """Kill this process, unless an earlier call did so."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return os.getpid()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def run_out_of_memory(asking_pid: int) -> int:
    if os.getpid() != asking_pid:
        raise MemoryError
    return os.getpid()


def return_what_cannot_be_sent(asking_pid: int) -> object:
    return os.getpid() if os.getpid() == asking_pid else (lambda: None)


def work_for_ever(path: str) -> None:
    """Write the process id, and run forever."""
    with open(path, "w") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        time.sleep(60)


def answer_late(number: int, fifo: str) -> str:
    """Interrupt the parent, and return when a writer opens a fifo."""
    os.kill(os.getppid(), number)
    os.close(os.open(fifo, os.O_RDONLY))
    return "this is late"


class DeadlyDisk(RealDisk):
    """The real disk. Any process except its creator dies in the middle of an operation: a write or sync, or after
    giving a file a name that ends as chosen.
    """

    def __init__(self, operation: str) -> None:
        self.operation, self.pid = operation, os.getpid()

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> RealFile:
        file = super().open(path, create=create, writable=writable)
        deadly = DeadlyFile(path, os.dup(file.fileno()))
        deadly.operation = "" if os.getpid() == self.pid else self.operation
        file.close()
        return deadly

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if os.getpid() != self.pid and new.endswith(self.operation):
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlyFile(RealFile):
    __slots__ = ("operation",)

    def pwrite(self, data: Buffer, position: int) -> None:
        if self.operation == "write":
            super().pwrite(b"\xff" * (len(data) // 2), position)
            os.kill(os.getpid(), signal.SIGKILL)
        super().pwrite(data, position)

    def sync(self) -> None:
        if self.operation == "sync":
            os.kill(os.getpid(), signal.SIGKILL)
        super().sync()
