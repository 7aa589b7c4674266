"""Files of any Hadoop file system, through PySpark's JVM.

Paths are relative to one directory. A file appears atomically under its name: file systems rename atomically, and an
object store shows a copied object only when it is complete.

`create` must fail if the file exists. On HDFS and ABFS the server ensures that, by a rename that fails if the name
exists; in a local directory a hard link does. Elsewhere Hadoop checks first and copies then (S3A does), so two writers
at the same time would both succeed. There the staged file announces the commit to all other writers, and a writer that
finds another announcement backs off; see `create`.

Java exceptions become OSError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from kbroker.runtime.env import RealEnv
from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.session import afterwards

# The server of these file systems decides which rename is first.
EXCLUSIVE: Final = frozenset({"hdfs", "webhdfs", "swebhdfs", "abfs", "abfss"})
CLAIM_S: Final = 60.0
"""How long a claim blocks other writers. A writer that needs more than half of that time backs off."""


class Claimed(OSError):
    """Another writer is about to create the same file, or was killed while it did."""


class Listed(NamedTuple):
    """A file below a directory. Units: size in bytes."""

    path: str
    size: int


class HadoopDirectory:
    """The files below one directory, which need not exist yet."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark._jvm
        with _java_errors(path):
            configuration = spark._jsc.hadoopConfiguration()
            root = self._jvm.org.apache.hadoop.fs.Path(path)
            self._fs = root.getFileSystem(configuration)
            self._root = self._fs.makeQualified(root)
            self._context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(self._root.toUri(), configuration)
        self.path: str = self._root.toString()

    @classmethod
    def for_writing(cls, spark: SparkSession, path: str) -> HadoopDirectory:
        """A directory that Spark can read again. Errors: InvalidOption."""
        if pattern := [character for character in path if character in "*?[]{}"]:
            raise InvalidOption(
                f"the directory's name {path} contains {pattern[0]}, which Spark interprets as a pattern when it reads",
                remedy="use a name without *, ?, [, ], { and }",
            )
        return cls(spark, path)

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root

    def exists(self, path: str) -> bool:
        with _java_errors(f"{self.path}/{path}"):
            return bool(self._fs.exists(self._at(path)))

    def names(self, path: str) -> list[str]:
        """The sorted names in a directory; empty if it does not exist."""
        try:  # without `exists`: the directory may be deleted in between
            with _java_errors(f"{self.path}/{path}"):
                return sorted(each.getPath().getName() for each in self._fs.listStatus(self._at(path)))
        except FileNotFoundError:
            return []

    def files(self, path: str) -> list[Listed]:
        """All files below a directory, at any depth, with paths relative to that directory."""
        with _java_errors(f"{self.path}/{path}"):
            if not self._fs.exists(self._at(path)):
                return []
            found, waiting = [], [("", self._at(path))]
            while waiting:
                prefix, directory = waiting.pop()
                # Not `listFiles`: it also reads owners, for which Hadoop starts a process for each local file.
                for each in self._fs.listStatus(directory):
                    name = prefix + str(each.getPath().getName())
                    if each.isDirectory():
                        waiting.append((f"{name}/", each.getPath()))
                    else:
                        found.append(Listed(name, int(each.getLen())))
            return sorted(found)

    def size(self, path: str) -> int | None:
        """The size of a file; None if it does not exist."""
        try:
            with _java_errors(f"{self.path}/{path}"):
                return int(self._fs.getFileStatus(self._at(path)).getLen())
        except FileNotFoundError:
            return None

    def read(self, path: str) -> str:
        """The text of a small file."""
        with _java_errors(f"{self.path}/{path}"):
            stream = self._fs.open(self._at(path))
            with afterwards(stream.close):
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def create(self, path: str, text: str, *, staged: str) -> None:
        """Create a small file that must not exist: write it as `staged`, then rename it.

        Shape   staged is `STAGING/OWN/NAME`: each writer has its own directory next to those of the others, and writers
                of the same file use the same NAME
        Errors  FileExistsError; Claimed if the file system cannot decide which writer is first, and another writer has
                staged the file too. Then at most one of them renames it
        """
        with _java_errors(f"{self.path}/{path}"):
            begun_ns = RealEnv.now_ns()
            self._write(staged, text)
            self.make_parent(path)
            scheme = self._root.toUri().getScheme()
            if scheme == "file" and self._is_linked(staged, path):
                return
            if scheme not in EXCLUSIVE:
                self._refuse_rivals(staged, begun_ns)
            none = self._jvm.java.lang.reflect.Array.newInstance
            options = none(self._jvm.java.lang.Class.forName("org.apache.hadoop.fs.Options$Rename"), 0)
            self._context.rename(self._at(staged), self._at(path), options)

    def _refuse_rivals(self, staged: str, begun_ns: int) -> None:
        """Check that no other writer has staged the file lately, by the file system's clock. Errors: Claimed."""
        own, name = staged.rsplit("/", 2)[-2:]
        pattern = self._at(f"{staged.removesuffix(f'{own}/{name}')}*/{name}")
        claims = {each.getPath().getParent().getName(): each for each in self._fs.globStatus(pattern) or ()}
        mine = claims.pop(own, None)
        if mine is None:
            return  # the first writer has deleted it, so the rename will fail
        since = mine.getModificationTime() - round(CLAIM_S * 1000)
        rivals = [each for each, claim in claims.items() if claim.getModificationTime() >= since]
        took = (RealEnv.now_ns() - begun_ns) / 1e9
        if rivals or took > CLAIM_S / 2:
            self._fs.delete(self._at(staged), False)
            why = f"another writer has staged {rivals[0]}/{name}" if rivals else f"it took {took:.0f} s to stage it"
            raise Claimed(f"{self.path}/{staged} is not renamed: {why}")

    def _is_linked(self, old: str, new: str) -> bool:
        """Create a hard link to a local file; False if the file system has no links. Errors: Py4JJavaError."""
        here, there = (self._jvm.java.io.File(self._at(each).toUri().getPath()).toPath() for each in (old, new))
        try:
            self._jvm.java.nio.file.Files.createLink(there, here)
        except Py4JJavaError as error:
            if _java_name(error) == "FileAlreadyExistsException":
                raise
            return False
        return True

    def touch(self, path: str) -> None:
        """Create or truncate an empty file."""
        with _java_errors(f"{self.path}/{path}"):
            self._fs.create(self._at(path), True).close()

    def _write(self, path: str, text: str) -> None:
        stream = self._fs.create(self._at(path), True)
        with afterwards(stream.close):
            stream.write(text.encode())
            if hasattr(stream, "hsync"):
                stream.hsync()

    def make_parent(self, path: str) -> None:
        with _java_errors(f"{self.path}/{path}"):
            self._fs.mkdirs(self._at(path).getParent())

    def rename(self, old: str, new: str) -> None:
        """Errors: OSError if the file system refuses, possibly without a reason."""
        with _java_errors(f"{self.path}/{new}"):
            if not self._fs.rename(self._at(old), self._at(new)):
                raise OSError(f"{self.path}/{old} could not be renamed to {new}")

    def delete(self, path: str) -> None:
        """Delete a file or a directory tree, if it exists."""
        with _java_errors(f"{self.path}/{path}"):
            self._fs.delete(self._at(path), True)


@contextmanager
def _java_errors(path: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        name = _java_name(error)
        # HDFS appends the server's stack trace to the message.
        said = f"{path}: {(error.java_exception.getMessage() or name).splitlines()[0]}"
        kinds: dict[str, type[OSError]] = {
            "FileAlreadyExistsException": FileExistsError,
            "FileNotFoundException": FileNotFoundError,
            "AccessControlException": PermissionError,
        }
        raise kinds.get(name, OSError)(said) from None


def _java_name(error: Any) -> str:
    return str(error.java_exception.getClass().getSimpleName())
