"""Write `docs/compatibility.md` from the table of handlers, so that the page cannot promise what is not served."""

import sys
from pathlib import Path

from hailbus_broker.protocol.api import APIS
from hailbus_broker.server.handlers.table import HANDLERS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"
HEAD = """# Protocol support

Written by `uv run derive-compatibility` from the table that ApiVersions is answered from. The broker does not advertise
any other API or version, and rejects it as Apache Kafka does. *All* means every version of the API in Apache Kafka 4.3.

| Key | API | Versions served | |
|---|---|---|---|
"""
TAIL = """
`tests/conformance` runs these clients against the broker: aiokafka, confluent-kafka (librdkafka), kafka-python, kcat,
the Java clients and Apache Kafka's command-line tools, franz-go, kafkajs, faust-streaming and Spark.
"""


def page() -> str:
    """Return the text of the page."""
    rows = []
    for key, handler in sorted(HANDLERS.items()):
        api = APIS[key]
        first = api.first if handler.first is None else handler.first
        extent = "all" if first == api.first else f"of {api.first}–{api.last}"
        rows.append(f"| {int(key)} | {api.name} | {first}–{api.last} | {extent} |\n")
    return HEAD + "".join(rows) + TAIL


def main() -> None:
    """Write the page; with `--check` only say whether it is up to date."""
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PAGE.read_text() == page() else f"{PAGE.name} is out of date: run `uv run derive-compatibility`")
    PAGE.write_text(page())
