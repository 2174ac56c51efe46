"""The files of the demo and of the lake sink: read when they change, never waited for."""

import json
import time
from pathlib import Path
from typing import Any


class JsonFile:
    """A JSON file that somebody else replaces. `content` is the last that could be read, `error` why none can be."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.content: dict[str, Any] | None = None  # Any: JSON
        self.error: str | None = None
        self._stamp: tuple[int, int] | None = None

    def refresh(self) -> bool:
        """Read the file if it changed; return whether it did."""
        if self.path is None:
            return False
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp == self._stamp:
                return False
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            changed, self.error = self.error is None, "not written yet"
            return changed
        except (OSError, ValueError) as error:
            changed, self.error = self.error is None, f"cannot be read: {error}"
            return changed
        if not isinstance(content, dict):
            self.error = "holds no JSON object"
            return True
        self.content, self.error, self._stamp = content, None, stamp
        return True

    def age_s(self) -> float | None:
        """Return how long ago the content was written; `None` before there is any."""
        return None if self._stamp is None else round(max(0.0, time.time() - self._stamp[0] / 1e9), 1)


__all__ = ["JsonFile"]
