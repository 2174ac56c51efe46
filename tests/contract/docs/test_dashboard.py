"""The dashboard and the alerting rules ask for metrics and labels that a service and a broker expose."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest
import yaml
from hailbus_devtools.derive_metrics import observe

from tests.contract.docs.pages import ROOT

FOLDER = ROOT / "docs" / "observability"
PAGE = ROOT / "docs" / "observability.md"
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
ALERTS = [
    rule
    for group in yaml.safe_load((FOLDER / "prometheus-alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
VARIABLES = {"$__rate_interval": "5m", "$service": ".*", "$group": ".*"}


def panels() -> Iterator[dict[str, Any]]:
    for panel in DASHBOARD["panels"]:
        yield panel
        yield from panel.get("panels", [])


def queries() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    for index, query in enumerate(
        re.findall(r"`((?:rate|increase)\([^`]*\)|hailbus_\w+|kafka_\w+)`", PAGE.read_text())
    ):
        yield f"page-{index}", query


QUERIES = [pytest.param(query, id=where) for where, query in queries()]


@pytest.fixture(scope="module")
def exposed() -> dict[str, set[str]]:
    """The labels of each series."""
    return {
        series: set(metric.labels) | ({"le"} if series.endswith("_bucket") else set())
        for metrics in asyncio.run(observe())
        for metric in metrics
        for series in metric.series
    }


def selectors(node: Any) -> Iterator[Any]:
    """Yield the selectors of a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "args", "param"):
        below = getattr(node, name, None)
        for child in below if isinstance(below, list) else [below]:
            if child is not None:
                yield from selectors(child)


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_is_exposed(query: str, exposed: dict[str, set[str]]) -> None:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    found = list(selectors(promql_parser.parse(query)))
    assert found
    for selector in found:
        assert selector.name in exposed, query
        matched = {matcher.name for matcher in selector.matchers.matchers}
        assert matched <= exposed[selector.name], query


def test_legends_name_labels_that_the_query_keeps() -> None:
    for panel in panels():
        for target in panel.get("targets", []):
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", target["expr"]))))
            assert not kept or named <= kept, panel["title"]


def test_panels_have_titles_units_and_places_of_their_own() -> None:
    shown = [panel for panel in panels() if panel["type"] != "row"]
    titles = [panel["title"] for panel in shown]
    assert len(titles) == len(set(titles)) > 10
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in shown]
    assert len(places) == len(set(places))
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in shown)


def test_the_page_lists_every_alert() -> None:
    rows = re.findall(r"^\| `(Hailbus\w+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert rows == [rule["alert"] for rule in ALERTS]
