"""Files of any Hadoop file system, through the JVM that PySpark has anyway.

Paths are relative to one directory. What is written appears at once and whole under its name: file systems rename it
atomically, and object stores copy it, which shows nothing of an object until all of it is there.

What must not be there yet gets its name from the server on HDFS and ABFS, by a rename that fails where the name is
taken, and by a link in a local directory. Elsewhere Hadoop looks first and copies then (S3A does): two that do so at
once both believe that they were the first. There the staged file is a claim that all others see, and who sees another
one's gives way; see `create`.
Errors of Java's become OSError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kbroker.runtime.env import RealEnv
from kbroker.spark.errors import InvalidOption
from kbroker.spark.jobs.session import afterwards

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Where the server of the file system decides by itself whether a rename comes first.
EXCLUSIVE: Final = frozenset({"hdfs", "webhdfs", "swebhdfs", "abfs", "abfss"})
CLAIM_S: Final = 60.0
"""How long a claim keeps others away. Who has not renamed after half of it does not do so any more."""


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
        """One that Spark can read again. Errors: InvalidOption."""
        if pattern := [character for character in path if character in "*?[]{}"]:
            raise InvalidOption(
                f"the directory's name {path} has {pattern[0]} in it, which is a pattern to Spark when it reads it",
                remedy="give a name without *, ?, [, ], { and }",
            )
        return cls(spark, path)

    def _at(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path) if path else self._root

    def exists(self, path: str) -> bool:
        with _java_errors(f"{self.path}/{path}"):
            return bool(self._fs.exists(self._at(path)))

    def names(self, path: str) -> list[str]:
        """What a directory holds, sorted; nothing where there is none."""
        try:  # not `exists` first: another one may delete it in between
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
                # Not `listFiles`: that asks for owners as well, for which Hadoop starts a process for each file that
                # is on a local disk.
                for each in self._fs.listStatus(directory):
                    name = prefix + str(each.getPath().getName())
                    if each.isDirectory():
                        waiting.append((f"{name}/", each.getPath()))
                    else:
                        found.append(Listed(name, int(each.getLen())))
            return sorted(found)

    def size(self, path: str) -> int | None:
        """Of a file; None where there is none."""
        try:
            with _java_errors(f"{self.path}/{path}"):
                return int(self._fs.getFileStatus(self._at(path)).getLen())
        except FileNotFoundError:
            return None

    def read(self, path: str) -> str:
        """All of a small file."""
        with _java_errors(f"{self.path}/{path}"):
            stream = self._fs.open(self._at(path))
            with afterwards(stream.close):
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))

    def create(self, path: str, text: str, *, staged: str) -> None:
        """Write a small file that must not be there yet: as `staged` first, then renamed.

        Shape   staged is `STAGING/OWN/NAME`: a writer has a directory of its own among all others', and those who
                create the same file stage it under the same name
        Errors  FileExistsError; Claimed where the file system cannot tell who is first, and another writer has staged
                it as well: then neither of them renames, or the one alone who did not see the other
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
        """See that nobody else has staged the same lately, by the file system's clock. Errors: Claimed."""
        own, name = staged.rsplit("/", 2)[-2:]
        pattern = self._at(f"{staged.removesuffix(f'{own}/{name}')}*/{name}")
        claims = {each.getPath().getParent().getName(): each for each in self._fs.globStatus(pattern) or ()}
        mine = claims.pop(own, None)
        if mine is None:
            return  # who was first has swept it away: there is nothing left to be renamed
        since = mine.getModificationTime() - round(CLAIM_S * 1000)
        rivals = [each for each, claim in claims.items() if claim.getModificationTime() >= since]
        took = (RealEnv.now_ns() - begun_ns) / 1e9
        if rivals or took > CLAIM_S / 2:
            self._fs.delete(self._at(staged), False)
            why = f"another writer has staged {rivals[0]}/{name}" if rivals else f"it took {took:.0f} s to stage it"
            raise Claimed(f"{self.path}/{staged} is not renamed: {why}")

    def _is_linked(self, old: str, new: str) -> bool:
        """Give a local file a second name; False where the file system has no links. Errors: Py4JJavaError."""
        from py4j.protocol import Py4JJavaError  # noqa: PLC0415  (comes with PySpark)

        here, there = (self._jvm.java.io.File(self._at(each).toUri().getPath()).toPath() for each in (old, new))
        try:
            self._jvm.java.nio.file.Files.createLink(there, here)
        except Py4JJavaError as error:
            if _java_name(error) == "FileAlreadyExistsException":
                raise
            return False
        return True

    def touch(self, path: str) -> None:
        """Make an empty file, or empty it."""
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
        """Errors: OSError where the file system refuses it, which it may do without a reason."""
        with _java_errors(f"{self.path}/{new}"):
            if not self._fs.rename(self._at(old), self._at(new)):
                raise OSError(f"{self.path}/{old} could not be renamed to {new}")

    def delete(self, path: str) -> None:
        """A file or a whole directory; nothing where there is none."""
        with _java_errors(f"{self.path}/{path}"):
            self._fs.delete(self._at(path), True)


@contextmanager
def _java_errors(path: str) -> Iterator[None]:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  (comes with PySpark)

    try:
        yield
    except Py4JJavaError as error:
        name = _java_name(error)
        # HDFS sends the stack of its server behind the message.
        said = f"{path}: {(error.java_exception.getMessage() or name).splitlines()[0]}"
        kinds: dict[str, type[OSError]] = {
            "FileAlreadyExistsException": FileExistsError,
            "FileNotFoundException": FileNotFoundError,
            "AccessControlException": PermissionError,
        }
        raise kinds.get(name, OSError)(said) from None


def _java_name(error: Any) -> str:
    return str(error.java_exception.getClass().getSimpleName())
