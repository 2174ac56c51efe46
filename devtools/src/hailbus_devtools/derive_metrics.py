"""Write `docs/reference/metrics.md` from the metrics that a running service and a running broker expose."""

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hailbus import Context, Event, KafkaBus, Outbox, Service, Topic
from hailbus.database import create_engine
from hailbus.metrics import ServiceCollector
from hailbus_broker.metrics import Metrics
from hailbus_broker.testing import running_broker
from prometheus_client.core import Metric

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "metrics.md"
HEAD = """# Metrics

Written by `uv run derive-metrics` from what a running service and a running broker expose.
[Observability](../observability.md) says how to scrape metrics, and which of them to watch.

A counter grows from the start of the process; use `rate()` or `increase()`. A gauge is the value at the time of the
scrape. A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`.
"""
SDK = """
## Services

Exposed by `GET /metrics` of `svc.health()`, and by `ServiceCollector` in a registry of your own.

"""
BROKER = """
## Broker

Exposed by `GET /metrics` at the address of the option `metrics.listen`. Names that begin with `kafka_` are those of
kafka_exporter, so dashboards that know it work unchanged.

"""
TABLE = "| Metric | Type | Unit | Labels | Meaning |\n|---|---|---|---|---|\n"
UNITS = {"seconds": "seconds", "bytes": "bytes", "offset": "offset", "healthy": "0 or 1"}
"""The unit that a word of the name tells; every other metric counts what its name says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """One metric as Prometheus sees it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str

    @property
    def series(self) -> tuple[str, ...]:
        """Return the names by which queries find it."""
        if self.kind == "histogram":
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)

    @property
    def unit(self) -> str:
        """Return what the values count or measure."""
        return next((unit for word, unit in UNITS.items() if word in self.name.split("_")), "count")


def exposed(families: Iterable[Metric]) -> list[Exposed]:
    """Return the metrics of a collector, by name."""
    found = []
    for family in families:
        labels = set(getattr(family, "_labelnames", ())) | {
            name for sample in family.samples for name in sample.labels if name != "le"
        }
        suffix = "_total" if family.type == "counter" else ""
        found.append(
            Exposed(
                name=family.name + suffix, kind=family.type, labels=tuple(sorted(labels)), text=family.documentation
            )
        )
    return sorted(found, key=lambda metric: metric.name)


class _Measured(Event, topic=Topic("measured.v1", partitions=1), key="name", type="thing.measured"):
    name: str


async def observe() -> tuple[list[Exposed], list[Exposed]]:
    """Run a broker and a service that publishes, handles and relays, and return the metrics of each."""
    with tempfile.TemporaryDirectory() as folder:
        engine = create_engine(f"sqlite:///{folder}/service.db")
        service = Service("derive-metrics")
        publisher = service.publishes(_Measured)
        service.relays(Outbox(engine))
        handled = asyncio.Event()

        @service.on(_Measured)
        async def handle(event: _Measured, ctx: Context) -> None:
            del event, ctx
            handled.set()

        async with running_broker() as broker:
            assert broker.server.dispatcher is not None
            metrics = Metrics(broker.server.dispatcher, max_partitions=1000)
            async with service.running(KafkaBus(bootstrap_servers=broker.bootstrap)):
                await publisher.publish(_Measured(name="one"))
                async with asyncio.timeout(30):
                    await handled.wait()
                of_service = exposed(ServiceCollector(service).collect())
            of_broker = exposed(metrics.families())
        await engine.dispose()
    return of_service, of_broker


def table(metrics: Iterable[Exposed]) -> str:
    """Return metrics as a table."""
    return TABLE + "".join(
        f"| `{metric.name}` | {metric.kind} | {metric.unit} | "
        f"{', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |\n"
        for metric in metrics
    )


def page() -> str:
    """Return the text of the page."""
    of_service, of_broker = asyncio.run(observe())
    return HEAD + SDK + table(of_service) + BROKER + table(of_broker)


def main() -> None:
    """Write the page; with `--check` only say whether it is up to date."""
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE.name} is out of date: run `uv run derive-metrics`")
    PAGE.write_text(page())
