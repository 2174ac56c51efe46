"""What names a schema: references to versions of other subjects, and the GUID that is the same in every registry."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

__all__ = ["Reference", "guid_of"]

Schema = Mapping[str, Any] | bool | str  # Any: JSON; the text of what is none


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """What a `$ref` of a schema names: a version of another subject."""

    name: str
    subject: str
    version: int


def guid_of(document: Schema, references: Iterable[Reference] = ()) -> str:
    """The same for the same schema anywhere: a digest of its content, whatever the order of its keys."""
    content = json.dumps(
        [document, [[r.name, r.subject, r.version] for r in sorted(references)]], sort_keys=True, separators=(",", ":")
    )
    return str(UUID(bytes=hashlib.md5(content.encode(), usedforsecurity=False).digest()))
