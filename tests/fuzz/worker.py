"""The process in which atheris runs one target: `python -m tests.fuzz.worker TARGET all-code CORPUS -runs=1000 ...`.

libFuzzer ends the process itself, so each target has its own. The packages that `targets.INSTRUMENTED` names are
instrumented; with "all-code" also the generated codecs, when they are compiled.
"""

from __future__ import annotations

import logging
import sys
from types import CodeType, FunctionType
from typing import Any

import atheris

import tests.fuzz.targets
from tests.fuzz.target import Watch


def main() -> None:
    """Fuzz; does not return."""
    name, instruments_codecs = sys.argv.pop(1), sys.argv.pop(1) == "all-code"
    logging.disable(logging.WARNING)
    target = tests.fuzz.targets.find(name)
    for prefix in tests.fuzz.targets.INSTRUMENTED[tests.fuzz.targets.MODULES[name]]:
        _instrument(prefix)
    if instruments_codecs:
        _instrument_codecs()
    atheris.Setup(sys.argv, Watch(target))
    atheris.Fuzz()


def _instrument(prefix: str) -> None:
    """Instrument the functions and methods of imported modules. (atheris' hook of imports compiles every module again,
    which takes many times as long.)
    """
    for name, module in list(sys.modules.items()):
        if name != prefix and not name.startswith(f"{prefix}."):
            continue
        classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
        for owner in (module, *classes):
            for value in list(vars(owner).values()):
                inner = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if isinstance(inner, FunctionType) and inner.__module__ == name and inner.__code__ not in _seen:
                    atheris.instrument_func(inner)
                    _seen.add(inner.__code__)


_seen: set[CodeType] = set()


def _instrument_codecs() -> None:
    """Instrument generated codecs too, which takes 20 ms for each: too long for short runs."""
    import wire.structs

    compile_function = wire.structs.compile_function

    def instrumented(*arguments: Any) -> Any:
        function = compile_function(*arguments)
        found = atheris.instrument_func(function)
        found.source = function.source
        return found

    wire.structs.compile_function = instrumented


if __name__ == "__main__":
    main()
