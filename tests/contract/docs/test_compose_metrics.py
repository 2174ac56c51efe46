"""Prometheus and Grafana of the compose file find what they are meant to read."""

from __future__ import annotations

from typing import Any

import yaml

from tests.contract.docs.pages import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yaml").read_text())["services"]
SCRAPED = yaml.safe_load((ROOT / "compose" / "prometheus" / "prometheus.yml").read_text())


def mounted(service: str) -> dict[str, str]:
    """The folders and files of the repository in a container: path in the container to path here."""
    pairs = [volume.removesuffix(":ro").split(":") for volume in COMPOSE[service]["volumes"]]
    return {there: here for here, there in pairs if here.startswith("./")}


def test_each_target_is_a_service_that_serves_metrics_at_that_port() -> None:
    targets = [
        target for job in SCRAPED["scrape_configs"] for config in job["static_configs"] for target in config["targets"]
    ]
    assert len(targets) == len(set(targets)) == 6
    for target in targets:
        name, _, port = target.partition(":")
        service: dict[str, Any] = COMPOSE[name]
        listens = [
            value for key, value in service["environment"].items() if key.endswith(("_LISTEN", "METRICS_LISTEN"))
        ]
        assert f"0.0.0.0:{port}" in listens, target


def test_what_is_mounted_exists_and_is_what_the_settings_name() -> None:
    for service in ("prometheus", "grafana"):
        assert COMPOSE[service]["profiles"] == ["observability"]
        for there, here in mounted(service).items():
            assert (ROOT / here).is_file(), there
    assert SCRAPED["rule_files"] == ["/etc/prometheus/alerts.yaml"]
    assert mounted("prometheus")["/etc/prometheus/alerts.yaml"] == "./docs/observability/prometheus-alerts.yaml"
    grafana = mounted("grafana")
    home = COMPOSE["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert grafana[home] == "./docs/observability/grafana-dashboard.json"
    provider = yaml.safe_load((ROOT / grafana["/etc/grafana/provisioning/dashboards/hailbus.yml"]).read_text())
    assert home.startswith(provider["providers"][0]["options"]["path"] + "/")
    source = yaml.safe_load((ROOT / grafana["/etc/grafana/provisioning/datasources/hailbus.yml"]).read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
