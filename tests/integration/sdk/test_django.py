"""Outbox and inbox in Django's own transactions, on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hailbus import Event, Outbox, Service, Topic
from hailbus.database import create_engine
from hailbus.testing import MemoryBus


class OrderPlaced(Event, topic=Topic("orders.v1", partitions=1), key="order_id", type="order.placed"):
    order_id: str


PROJECT = """
import json, sys
import django
from django.conf import settings

settings.configure(DATABASES={"default": json.loads(sys.argv[1])}, USE_TZ=True)
django.setup()

from datetime import timedelta
from django.db import connection, transaction
from hailbus import ConfigurationError, Context, Event, Service, Topic
from hailbus.django import DjangoInbox, create_tables, django_tx
from hailbus.sync import SyncPublisher

class OrderPlaced(Event, topic=Topic("orders.v1", partitions=1), key="order_id", type="order.placed"):
    order_id: str

shop = Service("shop")
orders = SyncPublisher(shop, shop.publishes(OrderPlaced))
inbox = DjangoInbox("till")

def row(name):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop_orders VALUES (%s)", [name])

def count(table):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        return cursor.fetchone()[0]

said = {}
"""

STORE = """
create_tables()
create_tables()                                     # again, without harm
with connection.cursor() as cursor:
    cursor.execute("CREATE TABLE shop_orders (name varchar(20))")
with transaction.atomic():
    row("kept")
    orders.publish(OrderPlaced(order_id="100%"), id="one", tx=django_tx())
    orders.publish_many([OrderPlaced(order_id=str(n)) for n in range(3)], tx=django_tx())
try:
    with transaction.atomic():
        row("lost")
        orders.publish(OrderPlaced(order_id="lost"), tx=django_tx())
        raise ValueError
except ValueError:
    pass
with transaction.atomic():
    try:
        with transaction.atomic():                  # a savepoint
            orders.publish(OrderPlaced(order_id="lost, too"), tx=django_tx())
            raise ValueError
    except ValueError:
        row("kept, too")
try:
    orders.publish(OrderPlaced(order_id="alone"), tx=django_tx())
except ConfigurationError as error:
    said["alone"] = str(error)
said["orders"], said["events"] = count("shop_orders"), count("hailbus_outbox")
print(json.dumps(said))
"""

CLAIM = """
from hailbus.clock import utc_now
from hailbus.codec import encode, envelope_for
from types import SimpleNamespace

def delivery(number):
    event = OrderPlaced(order_id="a")
    key, value, headers = encode(event, envelope_for(event, source="/shop", id=f"id-{number}", time=utc_now()))
    place = {"topic": "orders.v1", "partition": 0, "offset": number, "timestamp": 0, "timestamp_type": 0}
    return Context(SimpleNamespace(**place, key=key, value=value, headers=headers))

a, b = delivery(1), delivery(2)
with transaction.atomic():
    said["first"] = sorted(inbox.claim([a, a]))
with transaction.atomic():
    said["again"] = sorted(inbox.claim([a, b]))
try:
    with transaction.atomic():
        said["undone"] = sorted(inbox.claim([delivery(3)]))
        raise ValueError
except ValueError:
    pass
with transaction.atomic():
    said["after"] = sorted(inbox.claim([delivery(3)]))
    said["none"] = sorted(inbox.claim([]))
try:
    inbox.claim([a])
except ConfigurationError as error:
    said["alone"] = str(error)
said["kept"] = inbox.prune(timedelta(days=1))
said["pruned"] = inbox.prune(timedelta(days=-1))
print(json.dumps(said))
"""


def run(program: str, database_url: str, folder: Path) -> dict[str, Any]:  # Any: JSON
    """Run a part of a Django project in a process of its own: its settings hold for a process."""
    found = urlsplit(database_url)
    settings: dict[str, object] = {"ENGINE": "django.db.backends.sqlite3", "NAME": found.path[1:]}
    if found.scheme.startswith("postgresql"):
        settings = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": found.path[1:],
            "USER": found.username,
            "HOST": found.hostname,
            "PORT": found.port,
        }
    done = subprocess.run(
        [sys.executable, "-c", PROJECT + program, json.dumps(settings)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


async def test_events_are_committed_with_djangos_rows_and_relayed(database_url: str, tmp_path: Path) -> None:
    said = run(STORE, database_url, tmp_path)
    assert (said["orders"], said["events"]) == (2, 4)
    assert "use `with transaction.atomic():`" in said["alone"]
    engine = create_engine(database_url)
    outbox = Outbox(engine)
    bus = MemoryBus()
    relay = Service("relay")
    relay.publishes(OrderPlaced)
    relay.relays(outbox)
    async with relay.running(bus), asyncio.timeout(60):
        await outbox.until_empty()
    await engine.dispose()
    records = bus.records("orders.v1")
    assert [record.key for record in records] == [b"100%", b"0", b"1", b"2"]
    assert dict(records[0].headers)["ce_id"] == b"one"


def test_the_inbox_claims_once_in_djangos_transaction(database_url: str, tmp_path: Path) -> None:
    said = run("create_tables()\n" + CLAIM, database_url, tmp_path)
    assert (said["first"], said["again"]) == (["id-1"], ["id-2"])
    assert (said["undone"], said["after"], said["none"]) == (["id-3"], ["id-3"], [])
    assert "no transaction is open on Django's database 'default'" in said["alone"]
    assert (said["kept"], said["pruned"]) == (0, 3)
