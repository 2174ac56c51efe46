"""Write `docs/compatibility.md` from the table of handlers, so that the page cannot promise what is not served."""

import sys
from pathlib import Path

from hailbus_broker.protocol.api import APIS
from hailbus_broker.server.handlers.table import HANDLERS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "compatibility.md"
HEAD = """# What the broker serves

Written by `uv run derive-compatibility` from the table that ApiVersions is answered from. An API or version that is
not here is not advertised, and refused as Apache Kafka refuses it. *All* means every version that Apache Kafka 4.3
knows of that API.

| Key | API | Versions served | |
|---|---|---|---|
"""
TAIL = """
Which clients are known to work, and at which versions, is what `tests/conformance` runs: aiokafka, confluent-kafka
(librdkafka), kafka-python, kcat, the Java clients and Apache Kafka's command-line tools, franz-go, kafkajs,
faust-streaming and Spark.
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
