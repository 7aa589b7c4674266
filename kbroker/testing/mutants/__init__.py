"""Mutants: defects that are planted in kbroker to prove that the simulator finds them.

    python -m kbroker.testing.simulate --mutant truncate-by-hw --seeds 0..200

A mutant is a patch of the source of one or more modules. `install` must run before any of them is imported: it adds a
finder that compiles the patched source instead of the file. The product has no switches and no other trace of mutants.
With a mutant all modules of kbroker run from source, because compiled and interpreted modules cannot share classes.

The tables are grouped by what is damaged. docs/simulation.md lists which seed and which checker finds each mutant.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType
from typing import Final

from kbroker.testing.mutants.groups import GROUPS
from kbroker.testing.mutants.patch import Mutant, Patch
from kbroker.testing.mutants.replication import REPLICATION
from kbroker.testing.mutants.storage import STORAGE
from kbroker.testing.mutants.tier import TIER

MUTANTS: Final = {one.name: one for one in (*REPLICATION, *STORAGE, *GROUPS, *TIER)}
_PACKAGES: Final = ("kbroker", "wire")


def install(chosen: str | Mutant) -> None:
    """Plant a mutant, or the one of this name, in this process. Errors: KeyError for an unknown name."""
    mutant = MUTANTS[chosen] if isinstance(chosen, str) else chosen
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
