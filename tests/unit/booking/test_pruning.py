"""What booking keeps, and for how long."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from booking.config import Settings
from booking.main import create_app
from hailbus import Inbox, Outbox, Service
from hailbus.testing import MemoryBus


def test_outbox_and_inbox_are_pruned_by_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pruned: dict[type, timedelta] = {}

    def prunes(_: Service, store: Any, *, keep: timedelta) -> None:
        pruned[type(store)] = keep

    monkeypatch.setattr(Service, "prunes", prunes)
    database = f"sqlite+aiosqlite:///{tmp_path}/booking.db"
    create_app(
        Settings.model_validate({"bootstrap_servers": "x:1", "database_url": database, "keep_d": 3, "auth": "off"}),
        bus=MemoryBus(),
    )
    assert pruned == {Outbox: timedelta(days=3), Inbox: timedelta(days=3)}
