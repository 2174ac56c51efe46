"""`hailbus relay --listen`: what its probes answer while the broker or the database is away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from hailbus import Event, Service, Topic
from hailbus.sync import SyncOutbox, SyncPublisher, create_engine
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from tests.support import free_port, wait_for

EVENTS = """
from hailbus import Event, Topic

class OrderPlaced(Event, topic=Topic("probed.v1", partitions=1), key="order_id", type="order.placed"):
    order_id: str
"""
HAILBUS = Path(sys.executable).with_name("hailbus")


class OrderPlaced(Event, topic=Topic("probed.v1", partitions=1), key="order_id", type="order.placed"):
    order_id: str


class OwnCluster(Protocol):
    bootstrap: str

    def kill(self) -> None: ...
    def start(self) -> None: ...


class Probes:
    """A relay's routes, over HTTP."""

    def __init__(self, address: str) -> None:
        self._http = httpx.Client(base_url=address)

    def get(self, route: str) -> tuple[int, dict[str, Any]]:
        answer = self._http.get(route)
        return answer.status_code, answer.json()

    def reasons(self) -> str:
        """The reasons of `/readyz`, which must not be why a restart would help."""
        assert self.get("/livez") == (200, {"status": "ok"})
        status, body = self.get("/readyz")
        return " ".join(body["reasons"]) if status == 503 else ""

    def text(self, route: str) -> str:
        return self._http.get(route).text


def doctor(folder: Path, bootstrap: str, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [HAILBUS, "doctor", "-b", bootstrap, *words],
        cwd=folder,
        env=os.environ | {"HAILBUS_CONNECT_TIMEOUT_S": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def renamed(engine: Engine, old: str, new: str) -> None:
    with engine.begin() as tx:
        tx.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))


@pytest.mark.parametrize("own_cluster", ["inhouse"], indirect=True)
def test_a_relay_tells_probes_which_of_broker_and_database_is_away(own_cluster: OwnCluster, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(EVENTS)
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    SyncOutbox(engine).create_tables()
    shop = Service("shop")
    orders = SyncPublisher(shop, shop.publishes(OrderPlaced))
    words = ["--database", f"sqlite:///{tmp_path}/shop.db", "-b", own_cluster.bootstrap, "--create-topics", "shop"]
    with (tmp_path / "relay.log").open("w") as log:
        process = subprocess.Popen(
            [HAILBUS, "relay", *words, "--listen", "127.0.0.1:0"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening="), (tmp_path / "relay.log").read_text()
        address = f"http://{line.strip().removeprefix('listening=')}"
        probes = Probes(address)
        assert probes.get("/readyz") == (200, {"status": "ok", "lag_seconds": {}})

        own_cluster.kill()
        with Session(engine) as tx, tx.begin():
            orders.publish(OrderPlaced(order_id="a"), tx=tx)
        wait_for("the broker's absence", lambda: "has not reached the broker at" in probes.reasons())
        assert 'hailbus_outbox_due_rows{service="hailbus-relay"} 1.0' in probes.text("/metrics")
        code, said = doctor(tmp_path, own_cluster.bootstrap, "--service", address)
        assert code == 1
        assert "WRONG  reason" in said
        assert "No broker answers this process. Check the address, the network and the broker" in said
        assert "no Kafka broker answers at" in said, "what the command itself finds"
        own_cluster.start()
        wait_for("the broker", lambda: not probes.reasons())
        wait_for("the event", lambda: 'due_rows{service="hailbus-relay"} 0.0' in probes.text("/metrics"))

        renamed(engine, "hailbus_outbox", "away")
        wait_for("the database's absence", lambda: "the outbox relay has failed for" in probes.reasons())
        assert "no such table: hailbus_outbox" in probes.reasons()
        renamed(engine, "away", "hailbus_outbox")
        wait_for("the database", lambda: not probes.reasons())
        code, said = doctor(tmp_path, own_cluster.bootstrap, "--service", address)
        assert (code, "WRONG" in said, f"{address}/readyz" in said) == (0, False, True), said

        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, output) == (0, "published=1\n")
    finally:
        process.kill()
        process.communicate()
        engine.dispose()


class NotAService(BaseHTTPRequestHandler):
    """Answers as some other program would."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"not here")

    def log_message(self, *_: object) -> None: ...


def test_doctor_says_when_an_address_is_no_service(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with HTTPServer(("127.0.0.1", 0), NotAService) as other:
        thread = threading.Thread(target=other.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{other.server_port}/"
        code, said = doctor(tmp_path, f"127.0.0.1:{free_port()}", "--service", url, "--service", nobody, "--json")
        other.shutdown()
        thread.join()
    found = {one["what"]: one for one in map(json.loads, said.splitlines())}
    assert code == 1
    assert found[f"{url}livez"]["found"] == "no answer: HTTP status 404 without the body of a health route"
    assert "Connection refused" in found[f"{nobody}/livez"]["found"]
    assert "Give the address of the service's health routes" in found[f"{nobody}/livez"]["advice"]


def failed(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [HAILBUS, "relay", "-b", f"127.0.0.1:{free_port()}", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    return done.stderr


def test_what_keeps_a_relay_from_starting_is_one_line(tmp_path: Path) -> None:
    database = ("--database", f"sqlite:///{tmp_path}/shop.db")
    cases: dict[str, Callable[[], str]] = {
        "is no address to listen on": lambda: failed(tmp_path, *database, "--listen", "nowhere"),
        "choose another address": lambda: failed(tmp_path, *database, "--listen", "192.0.2.1:80"),
        "--listen and --until-empty exclude each other": lambda: failed(
            tmp_path, *database, "--listen", "127.0.0.1:0", "--until-empty"
        ),
    }
    for sentence, said in cases.items():
        assert sentence in said(), sentence


@pytest.mark.parametrize("own_cluster", ["inhouse"], indirect=True)
def test_a_database_that_cannot_be_opened_is_one_line(own_cluster: OwnCluster, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    said = failed(tmp_path, "--database", f"sqlite:///{folder}", "-b", own_cluster.bootstrap)
    assert f"the outbox's database sqlite+aiosqlite:///{folder} cannot be used: unable to open database file" in said
