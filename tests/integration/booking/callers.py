"""Tokens for the tests' riders and drivers, and who it is that a request comes from."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from booking.issue import make_keys, sign

By = tuple[str, str]
"""Role and subject."""


class Callers:
    """Signs tokens with a key of its own. `keys` goes into `BOOKING_AUTH_KEYS`."""

    def __init__(self, folder: Path, *, algorithm: str = "EdDSA") -> None:
        signing, self.keys = make_keys(folder, algorithm=algorithm)
        self.signing_key: Any = json.loads(signing.read_text())
        self._tokens: dict[By, str] = {}
        self._riders: dict[str, str] = {}

    def token(self, role: str, subject: str, *, lasts: timedelta = timedelta(hours=1), **claims: str) -> str:
        if claims or lasts != timedelta(hours=1):
            return sign(self.signing_key, role=role, subject=subject, lasts=lasts, **claims)
        if (role, subject) not in self._tokens:
            self._tokens[role, subject] = sign(self.signing_key, role=role, subject=subject, lasts=lasts)
        return self._tokens[role, subject]

    def header(self, by: By) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token(*by)}"}

    def of(self, path: str, body: object = None) -> By:
        """Who would send this: the rider or driver that path and body name, else the rider of the quote or ride."""
        fields: Any = body if isinstance(body, dict) else {}
        parts = path.split("/")
        if parts[1] == "clock":
            return "operator", "tests"
        if parts[1] == "driver-updates":
            return "fleet", "tests"
        if parts[1] == "drivers":
            return "driver", parts[2]
        if "driver_id" in fields:
            return "driver", fields["driver_id"]
        if "rider_id" in fields:
            return "rider", fields["rider_id"]
        return "rider", self._riders.get(fields.get("quote_id", parts[2] if len(parts) > 2 else ""), "unknown")

    def note(self, answer: Any) -> None:
        """Remember whose quote or ride an answer is."""
        if isinstance(answer, dict) and "rider_id" in answer:
            for name in ("quote_id", "ride_id"):
                if answer.get(name) is not None:
                    self._riders[answer[name]] = answer["rider_id"]
