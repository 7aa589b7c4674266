"""The process in which atheris runs one target: `python -m tests.fuzz.worker TARGET CORPUS -runs=1000 ...`.

libFuzzer ends the process itself, so each target has its own. The modules of the broker are instrumented when they are
imported, the generated codecs when they are compiled.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import atheris

with atheris.instrument_imports(include=["kbroker", "wire", "h11"]):
    import wire.structs
    from tests.fuzz.target import Watch
    from tests.fuzz.targets import find


def main() -> None:
    """Fuzz; does not return."""
    compile_function = wire.structs.compile_function

    def instrumented(*arguments: Any) -> Any:
        function = compile_function(*arguments)
        found = atheris.instrument_func(function)
        found.source = function.source
        return found

    wire.structs.compile_function = instrumented
    logging.disable(logging.WARNING)
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, Watch(find(name)))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
