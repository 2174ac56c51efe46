"""What each extra of hailbus is for, as a program: it runs with the extra, and without it names the extra."""

from __future__ import annotations

from hailbus_devtools.release import Environment, ReleaseError

__all__ = ["COMBINED", "EXTRAS", "try_extra", "try_without_extras"]

_EVENTS = """
from hailbus import Event, Topic

class OrderPlaced(Event, topic=Topic("orders.v1"), key="order_id", type="order.placed"):
    order_id: str
    amount: int = 3
"""

_KAFKA = """
import asyncio, logging
from hailbus import BrokerUnreachableError, KafkaBus, Service

logging.getLogger("aiokafka").addHandler(logging.NullHandler())
try:
    asyncio.run(Service("shop").start(KafkaBus(bootstrap_servers="127.0.0.1:1", client=CLIENT, connect_timeout_s=0.5)))
except BrokerUnreachableError:
    print("worked")
"""

_SQL = (
    _EVENTS
    + """
import asyncio
from hailbus import Inbox, Outbox, Service
from hailbus.database import create_engine
from hailbus.testing import MemoryBus

async def main():
    engine = create_engine("sqlite:///shop.db")
    svc = Service("shop")
    orders, outbox = svc.publishes(OrderPlaced), Outbox(engine)
    svc.relays(outbox)
    svc.needs(Inbox(engine, consumer="shop"))
    async with svc.running(MemoryBus()):
        async with engine.begin() as tx:
            await orders.publish(OrderPlaced(order_id="a"), tx=tx)
        await outbox.until_empty()
    await engine.dispose()
    print("worked" if outbox.published_count == 1 else "lost")

asyncio.run(main())
"""
)

EXTRAS = {
    "kafka": f"CLIENT = 'aiokafka'\n{_KAFKA}",
    "librdkafka": f"CLIENT = 'librdkafka'\n{_KAFKA.replace('Service(', 'Service(provision=False, name=')}",
    "sql": _SQL,
    "postgres": (
        "import asyncio\n"
        "from hailbus.database import create_engine\n"
        "async def main():\n"
        "    try:\n"
        "        async with create_engine('postgresql://ada@127.0.0.1:1/shop').connect(): pass\n"
        "    except OSError:\n"
        "        print('worked')\n"
        "asyncio.run(main())\n"
    ),
    "fastapi": (
        "import hailbus.fastapi, hailbus.metrics\n"
        "from fastapi import FastAPI\n"
        "from hailbus import Service\n"
        "app = FastAPI()\n"
        "app.include_router(Service('shop').health())\n"
        "hailbus.metrics.metrics_text(Service('shop'))\n"
        "print('worked')\n"
    ),
    "cli": (
        "import subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'hailbus._command', '--help'], capture_output=True, text=True)\n"
        "print('worked' if 'dead letters' in done.stdout else done.stderr)\n"
    ),
    "registry": (
        "import asyncio\n"
        "from hailbus import RegistryUnreachableError\n"
        "from hailbus.registry import SchemaRegistry\n"
        "async def main():\n"
        "    async with SchemaRegistry('http://127.0.0.1:1', timeout_s=1) as registry:\n"
        "        try:\n"
        "            await registry.by_id(1)\n"
        "        except RegistryUnreachableError:\n"
        "            print('worked')\n"
        "asyncio.run(main())\n"
    ),
    "avro": _EVENTS
    + (
        "from hailbus.registry.avro import avro_reader, avro_schema, avro_writer\n"
        'value = avro_writer(OrderPlaced)(b\'{"order_id": "a", "amount": 7}\')\n'
        "event = OrderPlaced.model_validate_json(avro_reader(avro_schema(OrderPlaced))(value))\n"
        "print('worked' if event == OrderPlaced(order_id='a', amount=7) else event)\n"
    ),
    "protobuf": _EVENTS
    + (
        "import base64\n"
        "from hailbus.registry.protobuf import protobuf_reader, protobuf_schema, protobuf_writer\n"
        'value = protobuf_writer(OrderPlaced)(b\'{"order_id": "a", "amount": 7}\')\n'
        "schema = base64.b64encode(protobuf_schema(OrderPlaced).SerializeToString()).decode()\n"
        "event = OrderPlaced.model_validate_json(protobuf_reader(schema, [0])(value), strict=False)\n"
        "print('worked' if event == OrderPlaced(order_id='a', amount=7) else event)\n"
    ),
    "django": (
        "import hailbus.django\n"
        "import django\n"
        "from django.conf import settings\n"
        "settings.configure(DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'shop.db'}})\n"
        "django.setup()\n"
        "from django.db import transaction\n"
        "hailbus.django.create_tables()\n"
        "inbox = hailbus.django.DjangoInbox('till')\n"
        "with transaction.atomic():\n"
        "    print('worked' if inbox.claim([]) == set() else 'claimed')\n"
    ),
    "otel": ("from hailbus import Service\nService('shop', tracing=True, metering=True)\nprint('worked')\n"),
    "service": (
        "import asyncio\n"
        "from hailbus.process import run_process\n"
        "from pydantic_settings import BaseSettings, SettingsConfigDict\n"
        "class Settings(BaseSettings):\n"
        "    model_config = SettingsConfigDict(env_prefix='SHOP_')\n"
        "    log_level: str = 'info'\n"
        "async def serve(settings):\n"
        "    print('worked' if settings.log_level == 'info' else settings)\n"
        "run_process('shop', Settings, serve)\n"
    ),
}
"""A program for each extra that prints `worked`."""

COMBINED = {"standard": ("cli", "fastapi", "kafka")}
"""Extras that only combine others."""

ON_TOP = {"kafka": ("librdkafka",), "registry": ("avro", "protobuf"), "sql": ("postgres",)}
"""Extras that contain another one, by that one: without both, the error names the contained one first."""


def try_extra(extra: str, environment: Environment) -> None:
    """Run what an extra is for in an environment that has it, and what those on top of it are for.

    Raises:
        ReleaseError: It did not work, or the error of one on top of it does not name that extra.
    """
    for name in COMBINED.get(extra, (extra,)):
        done = environment.python(EXTRAS[name])
        if done.returncode or done.stdout.strip().splitlines()[-1:] != ["worked"]:
            raise ReleaseError(f"with hailbus[{extra}] this fails:\n{EXTRAS[name]}\n{done.stdout}{done.stderr}")
    for name in ON_TOP.get(extra, ()):
        _try_without(name, environment)


def try_without_extras(environment: Environment) -> None:
    """Run what each extra is for in an environment that has none: the error must name the extra.

    Raises:
        ReleaseError: It ended otherwise.
    """
    on_top = {name for names in ON_TOP.values() for name in names}
    for extra in EXTRAS:
        if extra not in on_top:
            _try_without(extra, environment)


def _try_without(extra: str, environment: Environment) -> None:
    done = environment.python(EXTRAS[extra])
    said = (done.stdout + done.stderr).strip()
    if f"pip install 'hailbus[{extra}]'" not in said.rpartition("\n")[2]:
        raise ReleaseError(f"without hailbus[{extra}] the error does not name it:\n{said}")
