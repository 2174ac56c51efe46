"""CRC-32C (Castagnoli), the checksum of record batches, by the `crc32c` C extension.

Pure Python manages a few MB/s here, the extension uses the processor's own instruction: it is required, not optional.
"""

from __future__ import annotations

from crc32c import crc32c

__all__ = ["crc32c"]
