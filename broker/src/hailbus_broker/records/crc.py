"""CRC-32C (Castagnoli), the checksum of record batches, by the `crc32c` C extension.

Pure Python manages a few MB/s here, the extension uses the processor's own instruction: it is required, not optional.
"""

from __future__ import annotations

from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crc32c import crc32c
else:

    def _load_function() -> Any:
        # The extension alone: the package around it loads importlib.metadata to know its own version, and with that
        # a tenth of what a broker loads to start.
        package = find_spec("crc32c")
        spec = package and PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations)
        if not spec or not spec.loader:
            import crc32c

            return crc32c.crc32c
        extension = module_from_spec(spec)
        spec.loader.exec_module(extension)
        return extension.crc32c

    crc32c = _load_function()

__all__ = ["crc32c"]
