"""Mutants: patches of source that give a process a defect, or a rule that Kafka has replaced.

`install` must run before any of the patched modules is imported: it adds a finder that compiles the patched source
instead of the file. The product has no switches and no other trace of mutants. With a mutant all modules of kbroker run
from source, because compiled and interpreted modules cannot share classes.

The stories of `kbroker simulate` have old rules as mutants (`kbroker.testing.scenarios`). The defects that prove that
the simulator finds bugs are in `tests/mutants`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final, NamedTuple

_PACKAGES: Final = ("kbroker", "wire")


class Patch(NamedTuple):
    """One replacement in the source of a module; `old` occurs there exactly once."""

    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The patched source. Errors: AssertionError if the source has changed so that the patch does not fit."""
        count = source.count(self.old)
        assert count == 1, f"the text to replace occurs {count} times in {self.module}:\n{self.old}"
        return source.replace(self.old, self.new)


class Mutant(NamedTuple):
    """One planted defect. Shape: why is a sentence about the defect; expected are the checks that may find it."""

    name: str
    why: str
    expected: tuple[str, ...]
    patches: tuple[Patch, ...]


def install(mutant: Mutant) -> None:
    """Plant a mutant in this process. Errors: AssertionError if a module that it changes is already imported."""
    imported = sorted({patch.module for patch in mutant.patches} & sys.modules.keys())
    assert not imported, f"a mutant is installed before {', '.join(imported)} is imported"
    for loaded in [module for key, module in sys.modules.items() if key.partition(".")[0] in _PACKAGES]:
        assert not is_compiled(loaded), f"a mutant is installed before the compiled {loaded.__name__} is imported"
    sys.meta_path.insert(0, _Finder(mutant))


def is_compiled(module: ModuleType) -> bool:
    """Whether a module is an extension."""
    return (getattr(module, "__file__", None) or "").endswith(tuple(EXTENSION_SUFFIXES))


class _Finder(MetaPathFinder):
    """Finds the modules of kbroker in their source files."""

    def __init__(self, mutant: Mutant) -> None:
        self._patches: dict[str, list[Patch]] = {}
        for patch in mutant.patches:
            self._patches.setdefault(patch.module, []).append(patch)

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in _PACKAGES:
            return None
        for entry in sys.path if path is None else path:
            spec = FileFinder(entry or ".", (SourceFileLoader, [".py"])).find_spec(fullname, target)
            if spec is not None and spec.loader is not None:
                if fullname in self._patches:
                    assert spec.origin is not None
                    spec.loader = _PatchingLoader(fullname, spec.origin, self._patches[fullname])
                return spec
        return None


class _PatchingLoader(SourceFileLoader):
    """Compiles the patched source of one module, and leaves no bytecode."""

    def __init__(self, fullname: str, path: str, patches: list[Patch]) -> None:
        super().__init__(fullname, path)
        self._patches = patches

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.get_filename(fullname)).decode()
        for patch in self._patches:
            source = patch.apply(source)
        return compile(source, self.path, "exec", dont_inherit=True)
