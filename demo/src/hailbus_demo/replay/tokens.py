"""Tokens of the demo's riders and gateways, signed with the key whose public half booking was given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from hailbus.clock import utc_now

from hailbus_demo.errors import UsageError

By = tuple[str, str]
"""Role and subject."""
OPERATOR: By = ("operator", "demo")
FLEET: By = ("fleet", "demo")
"""Driver apps share a gateway, which sends their updates in batches."""
LASTS = timedelta(hours=12)
RENEWED = timedelta(hours=1)
"""How long before its end a token is replaced."""
REMEMBERED_MAX = 10_000


class Tokens:
    """Signs tokens and remembers the latest ones.

    Args:
        key: A private JWK with `kid` and `alg`, as `booking-token keys` writes it.
    """

    def __init__(self, key: Mapping[str, Any]) -> None:  # Any: JSON
        self._kid, self._algorithm = str(key["kid"]), str(key["alg"])
        self._key = jwt.PyJWK(dict(key)).key
        self._known: dict[By, tuple[str, datetime]] = {}

    @classmethod
    def read(cls, path: Path, *, option: str) -> Tokens:
        """Return tokens by the key in a file.

        Raises:
            UsageError: It cannot be read, or is no signing key.
        """
        try:
            tokens = cls(json.loads(path.read_text(encoding="utf-8")))
            tokens.sign(OPERATOR)
        except OSError as error:
            raise UsageError(f"{option} {path}: {error.strerror}; name the key that signs booking's tokens") from error
        except (ValueError, KeyError, TypeError, jwt.PyJWTError) as error:
            raise UsageError(f"{option} {path} is no signing key; `booking-token keys` writes one") from error
        return tokens

    def of(self, by: By) -> str:
        """Return a token of a role and subject that is good for an hour at least."""
        now = utc_now()
        known = self._known.get(by)
        if known is None or known[1] < now + RENEWED:
            known = self._known[by] = (self.sign(by), now + LASTS)
            if len(self._known) > REMEMBERED_MAX:
                del self._known[next(iter(self._known))]
        return known[0]

    def sign(self, by: By, *, lasts: timedelta = LASTS) -> str:
        """Return a new token."""
        role, subject = by
        now = utc_now()
        claims = {"sub": subject, "role": role, "iat": now, "exp": now + lasts}
        return jwt.encode(claims, self._key, algorithm=self._algorithm, headers={"kid": self._kid})
