"""The replay and the ledger alone, against a system that somebody else runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hailbus import ClusterAdmin, HailbusError, KafkaBus
from rich.console import Console
from ride_events import TOPICS

from hailbus_demo.audit import AuditPlan, catch_up, draw_up
from hailbus_demo.city.plan import to_ms
from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.figures import Figures, Timings
from hailbus_demo.ledger.gather import Sources
from hailbus_demo.options import RideOptions
from hailbus_demo.replay.advice import RecommenderClient
from hailbus_demo.replay.book import Book
from hailbus_demo.replay.http import HttpClient
from hailbus_demo.replay.locations import driver_apps
from hailbus_demo.replay.stage import Stage
from hailbus_demo.replay.sure import GaveUpError, NotAcceptedError, SureClient, Traffic
from hailbus_demo.replay.tokens import Tokens
from hailbus_demo.replay.world import ENDS_WITHIN_MS, World, report_every
from hailbus_demo.rides import RideSource
from hailbus_demo.run import SERVICE_DEADLINE_S, Interrupts, refuse_silence
from hailbus_demo.services import CONSUMERS, TOPIC_NAMES, consumers_of
from hailbus_demo.show import Screen, figures_table, ledger_table, what_is_wrong
from hailbus_demo.supervise.state import DataDir, write_whole
from hailbus_demo.tray.poison import PoisonBook
from hailbus_demo.watch import Watch

FIRST_ANSWER_S = 10.0


def _client(url: str, *, name: str, option: str, connections: int = 64) -> SureClient:
    try:
        http = HttpClient(url, connections=connections)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from error
    return SureClient(http, name=name, deadline_s=SERVICE_DEADLINE_S)


async def _booking(url: str, key: Path | None, *, connections: int = 64) -> tuple[SureClient, dict[str, Any]]:
    """Return booking's client and its clock.

    Raises:
        UsageError: Nobody answers there like booking, or it does not accept tokens by this key.
    """
    client = _client(url, name="booking", option="--booking-url", connections=connections)
    client.tokens = None if key is None else Tokens.read(key, option="--booking-key")
    client.deadline_s = FIRST_ANSWER_S
    try:
        clock = await client.get("/clock")
    except NotAcceptedError as error:
        raise UsageError(
            f"{error}: give by --booking-key the signing key whose public half is in BOOKING_AUTH_KEYS"
        ) from error
    except (GaveUpError, ValueError) as error:
        raise UsageError(f"no booking service answers at {url}: start it, or correct --booking-url") from error
    client.deadline_s = SERVICE_DEADLINE_S
    return client, clock


async def play_against(
    options: RideOptions,
    *,
    bootstrap: str,
    booking_url: str,
    booking_key: Path | None,
    recommender_url: str | None,
    data_dir: Path,
    book_path: Path,
    run_name: str | None,
    console: Console,
) -> int:
    """Play rides against a running system; return the exit code.

    Raises:
        UsageError: The system is not there, or runs on the wall's clock.
        RunFailedError: Booking stayed away for longer than a request waits.
    """
    await refuse_silence(bootstrap)
    booking, clock = await _booking(booking_url, booking_key, connections=options.in_flight)
    if clock["clock"] != "event":
        raise UsageError(f"booking at {booking_url} runs on the wall's clock: start it with BOOKING_CLOCK=event")
    clock_ms = None if clock["now"] is None else to_ms(datetime.fromisoformat(clock["now"]))
    source = RideSource(options, data_dir=DataDir(data_dir), clock_ms=clock_ms)
    bus = KafkaBus(bootstrap_servers=bootstrap, client_id="demo-replay")
    advice = None
    if recommender_url is not None:
        recommender = _client(recommender_url, name="recommender", option="--recommender-url")
        advice = RecommenderClient(recommender, source.city)
    book, screen, interrupts = Book(book_path), Screen(console), Interrupts()
    stage = Stage(speed=options.speed, limit=options.in_flight)
    watch = Watch(bus, topics=TOPIC_NAMES, consumers=CONSUMERS, lake_dir=None)
    figures = Figures(
        run=1, speed=options.speed, book=book, stage=stage, watch=watch, supervisor=None,
        traffic=booking.traffic, timings=Timings(), rides_before=len(book.rides), phase="running",
    )  # fmt: skip
    interrupts.install()
    await watch.start()
    screen.figures = figures
    every_ms, busy = report_every(options.speed, options.location_every_s)
    try:
        async with screen, driver_apps(bus) as locations:
            world = World(
                stage=stage,
                booking=booking,
                book=book,
                run=run_name or f"replay-{int(time.time())}",
                locations=locations,
                location_every_ms=every_ms,
                busy_locations=busy,
                advice=advice,
            )
            adopted = await world.adopt()
            if adopted:
                screen.say(f"{adopted} rides were under way and continue")
            figures.timings.first_ride = time.monotonic()
            book.begin()
            playing = asyncio.create_task(world.play(source.plans()))
            asked = asyncio.create_task(_asked(interrupts, options.duration_s))
            await asyncio.wait({playing, asked}, return_when=asyncio.FIRST_COMPLETED)
            interrupted = not playing.done()
            stage.stop()
            await playing
            asked.cancel()
            if not interrupted:
                await world.settle(past_ms=stage.now_ms + ENDS_WITHIN_MS)
            book.end()
            figures.timings.rides_done = time.monotonic()
    except GaveUpError as error:
        raise RunFailedError(str(error)) from error
    finally:
        await watch.stop()
        book.close()
    if (what := source.describe()) is not None:
        console.print(what)
    state = figures.as_json()
    console.print(figures_table(state))
    rides = state["rides"]
    console.print(f"{rides['requested']:,} rides are in {book_path}; `demo ledger --book {book_path} …` compares them")
    return 0


async def _asked(interrupts: Interrupts, duration_s: float | None) -> None:
    try:
        async with asyncio.timeout(duration_s):
            await interrupts.asked.wait()
    except TimeoutError:
        return


async def audit(
    *,
    bootstrap: str,
    databases: Mapping[str, str],
    booking_regions: Sequence[str] = (),
    lake_dir: Path | None,
    lake_report: Mapping[str, Any] | None,
    journal: Path | None,
    poison_path: Path | None = None,
    book_path: Path | None,
    deadline_s: float,
    summary: Path | None,
    console: Console,
) -> int:
    """Draw up the ledger of a running system; return 0 if it balances, else 1.

    Raises:
        UsageError: The system is not there, or a file is missing.
    """
    copies = () if poison_path is None else tuple(PoisonBook(poison_path).copies)
    await refuse_silence(bootstrap)
    bus = KafkaBus(bootstrap_servers=bootstrap, client_id="demo-ledger")
    book = Book(book_path)
    stage = Stage()
    consumers = tuple(one for one in consumers_of(booking_regions) if one.database in databases)
    watch = Watch(bus, topics=TOPIC_NAMES, consumers=consumers, lake_dir=lake_dir)
    figures = Figures(
        run=1, speed=None, book=book, stage=stage, watch=watch, supervisor=None,
        traffic=Traffic(), timings=Timings(), phase="catching_up",
    )  # fmt: skip
    plan = AuditPlan(
        sources=Sources(
            bootstrap=bootstrap,
            databases=databases,
            consumers=consumers,
            book=None if book_path is None else book.account,
            journal=journal,
            lake_dir=lake_dir,
            lake_report=lake_report,
            poison=lambda: copies,
        ),
        deadline_s=deadline_s,
    )
    try:
        await catch_up(plan, watch)
        ledger = await draw_up(plan, figures)
    finally:
        await watch.stop()
        book.close()
    figures.phase = "done"
    state = figures.as_json()
    console.print(ledger_table(state))
    if summary is not None:
        write_whole(summary, json.dumps(state, indent=2) + "\n")
    if not ledger.balanced:
        console.print(what_is_wrong(ledger.lines), style="bold red", soft_wrap=True, markup=False)
    return ledger.exit_code


async def provision(bootstrap: str) -> int:
    """Create the topics of the example that are missing; return how many those were.

    Raises:
        UsageError: Nobody answers, or a topic there is of another shape.
    """
    await refuse_silence(bootstrap)
    try:
        async with asyncio.timeout(60), ClusterAdmin(bootstrap, client_id="demo-provision") as admin:
            return len(await admin.provision(TOPICS))
    except (HailbusError, TimeoutError) as error:
        reason = str(error) or "no answer within 60 s"
        raise UsageError(
            f"the topics at {bootstrap} cannot be made ({reason}): mend the cluster, or name another"
        ) from error
