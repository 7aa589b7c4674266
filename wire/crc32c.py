"""CRC-32C of RFC 3720 (Castagnoli), from the extension module of the package crc32c.

    checksum = crc32c(more, crc32c(data))

The package's `__init__` reads its own version from its metadata. The modules that it imports for that (e-mail, csv,
zip files) take 13 ms of a broker's start and more than a MiB of its memory. So this module loads only the extension,
and imports the package only if a release of it has no such extension.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

__all__ = ["crc32c"]


def _extension() -> Any:
    package = find_spec("crc32c")
    found = None if package is None else PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
    if found is None or found.loader is None:
        import crc32c  # noqa: PLC0415  (see above)

        return crc32c
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from crc32c import crc32c
else:
    crc32c = _extension().crc32c
