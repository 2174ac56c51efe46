"""Where our broker differs from Apache Kafka: each difference has a reason in deviations.md and a test."""

import re
from pathlib import Path
from typing import TypeVar

from .conftest import Cluster

FILE = Path(__file__).with_name("deviations.md")
T = TypeVar("T")


def deviations() -> dict[str, str]:
    """Return the reason of each deviation by its name."""
    parts = re.split(r"^## (.+)\n", FILE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


def expected(cluster: Cluster, *, apache: T, ours: T, deviation: str) -> T:
    """Return what this kind of broker does; `deviation` is a heading of deviations.md."""
    assert deviation in deviations(), f"{FILE.name} has no entry {deviation}"
    return apache if cluster.is_apache else ours
