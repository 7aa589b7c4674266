"""The process in which atheris runs one target: `python -m tests.fuzz.worker TARGET all-code CORPUS -runs=1000 ...`.

libFuzzer ends the process itself, so each target has its own. The modules of the broker are instrumented when they are
imported; with "all-code" also the generated codecs, when they are compiled.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import atheris

import tests.fuzz.targets
from tests.fuzz.target import Watch


def main() -> None:
    """Fuzz; does not return."""
    name, instruments_codecs = sys.argv.pop(1), sys.argv.pop(1) == "all-code"
    logging.disable(logging.WARNING)
    include = tests.fuzz.targets.INSTRUMENTED[tests.fuzz.targets.MODULES[name]]
    with atheris.instrument_imports(include=include):
        target = tests.fuzz.targets.find(name)
    if instruments_codecs:
        _instrument_codecs()
    atheris.Setup(sys.argv, Watch(target))
    atheris.Fuzz()


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
