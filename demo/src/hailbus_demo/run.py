"""The whole job: processes up, rides played, everything caught up, ledger drawn up, processes down."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import time
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from hailbus import Bus, ClusterAdmin, HailbusError, KafkaBus
from rich.console import Console
from ride_events import TOPICS

from hailbus_demo.audit import AuditPlan, catch_up, draw_up
from hailbus_demo.auditor import Auditor, Round, updated
from hailbus_demo.chaos import CLUSTER_VICTIMS, VICTIMS, BrokersByRole, Chaos, ChaosWithOutages, Plan
from hailbus_demo.city.demand import Demand
from hailbus_demo.city.plan import to_datetime
from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.figures import Figures, Sabotage, Timings
from hailbus_demo.ledger.gather import Sources
from hailbus_demo.options import Outage, RideOptions, parse_address
from hailbus_demo.outage import OutageOfProvider
from hailbus_demo.postgresql import NAME as POSTGRESQL
from hailbus_demo.postgresql import find_postgresql
from hailbus_demo.regions import ROUTER, is_booking, region_at, split_city, write_regions
from hailbus_demo.replay.advice import RecommenderClient
from hailbus_demo.replay.book import Book
from hailbus_demo.replay.http import HttpClient
from hailbus_demo.replay.locations import LocationFeed, driver_apps
from hailbus_demo.replay.stage import Stage
from hailbus_demo.replay.sure import GaveUpError, SureClient
from hailbus_demo.replay.world import ENDS_WITHIN_MS, World, report_every, silent_after_s
from hailbus_demo.rides import RideSource
from hailbus_demo.sabotage.deeds import Deed
from hailbus_demo.sabotage.faults import Fault
from hailbus_demo.sabotage.saboteur import Saboteur, Scene
from hailbus_demo.services import (
    DATABASES,
    DECLINES_PERCENT,
    TOPIC_NAMES,
    Ports,
    broker_spec,
    cluster_specs,
    consumers_of,
    is_broker,
    lake_spec,
    make_keys,
    names,
    service_specs,
)
from hailbus_demo.show import Screen, figures_table, kills_table, ledger_table, what_is_wrong
from hailbus_demo.supervise.ports import HOST, accepts, free_block, free_ports, require_free
from hailbus_demo.supervise.processes import Supervisor, command
from hailbus_demo.supervise.state import DataDir, RunState, write_whole
from hailbus_demo.tray.poison import PoisonBook
from hailbus_demo.tray.tray import FaultTray
from hailbus_demo.watch import Watch

LAKE_FINISH = "finish"
"""A file of this name in the lake's folder asks the Spark job to land everything, through gold, and to end."""
SERVICE_PORTS = 6
WHOLE_CITY = "booking_regions"
"""The schema with views that show the tables of all regions as one."""
SERVICE_DEADLINE_S = 120.0
"""How long a request is repeated while its service does not answer."""
BOOK_EVERY_S = 2.0
REACHABLE_WITHIN_S = 5.0
KEEPS_UP_WITHIN_S = 5.0
"""A group that is so many seconds behind has not applied yet what the log holds: that is no disagreement."""


T = TypeVar("T")
Disturber: TypeAlias = Chaos | ChaosWithOutages | Saboteur | OutageOfProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What `demo` was asked to do."""

    rides: RideOptions
    data_dir: Path
    fresh: bool
    port: int | None
    brokers: int
    bootstrap: str | None
    spark: bool
    browser: bool
    exit_when_done: bool
    summary: Path | None
    chaos: bool
    kills: int | None = None
    sabotage: Fault | None = None
    catch_up_s: float
    declines_percent: float = DECLINES_PERCENT
    outage: Outage | None = None
    dashboard_port: int | None = None
    regions: int = 1

    @property
    def is_disturbed(self) -> bool:
        """Whether the command line asks for faults. Others by a click on the page would get into their way."""
        return self.chaos or self.outage is not None or self.sabotage is not None


class Interrupts:
    """Ctrl-C and SIGTERM: the first asks for an orderly end, the second for a quick one."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.insisted = asyncio.Event()

    def install(self) -> None:
        """Take over both signals."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._come)

    def _come(self) -> None:
        if self.asked.is_set():
            self.insisted.set()
        self.asked.set()


def cluster_name(options: RunOptions) -> str:
    """Return what a data directory remembers of the cluster that its events are on."""
    if options.bootstrap is not None:
        name = options.bootstrap
    else:
        name = "in-house" if options.brokers == 1 else f"in-house, {options.brokers} brokers"
    return name if options.regions == 1 else f"{name}, {options.regions} regions"


async def run_demo(options: RunOptions, console: Console) -> int:
    """Do the whole job; return the exit code: 0 balanced, 1 not balanced or failed.

    Raises:
        UsageError: Something that the user can put right.
        RunFailedError: A process cannot be kept running.
    """
    data_dir = DataDir(options.data_dir)
    with contextlib.closing(data_dir.lock()):
        if options.fresh:
            data_dir.wipe()
        before = data_dir.load()
        cluster = cluster_name(options)
        if before is not None and before.cluster != cluster:
            raise UsageError(
                f"{data_dir.root} belongs to a run on {before.cluster}, not on {cluster}: start anew with --fresh, or "
                "give another --data-dir"
            )
        source = RideSource(options.rides, data_dir=data_dir, clock_ms=None if before is None else before.clock_ms)
        if options.summary is not None and not options.summary.absolute().parent.is_dir():
            raise UsageError(f"--summary {options.summary}: the folder does not exist, make it or choose another")
        return await _Run(options, data_dir, before, source, console).run()


class _Run:
    """One run of the demo."""

    def __init__(
        self, options: RunOptions, data_dir: DataDir, before: RunState | None, source: RideSource, console: Console
    ) -> None:
        self.options = options
        self.data_dir = data_dir
        self.source = source
        self.demand = Demand(source.city)
        self.console = console
        self.timings = Timings()
        self.state = RunState(
            cluster=cluster_name(options),
            run=1 if before is None else before.run + 1,
            clock_ms=None if before is None else before.clock_ms,
        )
        self.continues = before is not None
        self.areas = split_city(options.regions)
        self.postgresql = find_postgresql(data_dir) if self.areas else None
        self.poison = PoisonBook(data_dir.poison)
        self.played_to_the_end = False
        self.lake_start: asyncio.Task[None] | None = None
        self.others_ready: asyncio.Task[None] | None = None
        self.tray: FaultTray | None = None
        self.screen = Screen(console)
        self.interrupts = Interrupts()
        self.supervisor = Supervisor(say=self.screen.say)
        # Ctrl-C may come before anybody waits for a failure.
        self.supervisor.failure.add_done_callback(lambda failed: failed.exception())

    async def run(self) -> int:
        """Run it."""
        self.interrupts.install()
        try:
            return await self._run()
        finally:
            await self.screen.close()
            if self.tray is not None:
                await self.tray.stop()
            await self._stop_processes()

    async def _run(self) -> int:
        options, say = self.options, self.screen.say
        ports = self.ports = self._choose_ports()
        if options.bootstrap is not None:
            await self._unless_interrupted(refuse_silence(options.bootstrap))
        self.data_dir.save(self.state)
        for folder in (self.data_dir.databases, self.data_dir.logs):
            folder.mkdir(parents=True, exist_ok=True)
        _log_to(self.data_dir.logs / "demo.log")
        lake_ready = asyncio.create_task(self._set_up_lake()) if options.spark else None
        making_keys = asyncio.create_task(make_keys(self.data_dir))  # a process of its own, beside the broker's start
        if options.bootstrap is None:
            assert ports.broker is not None
            bootstrap = await self._start_brokers(ports.broker)
        else:
            bootstrap = options.bootstrap
        bus = KafkaBus(bootstrap_servers=bootstrap, client_id="demo")
        created = await self._provision(bus, bootstrap)
        if created:
            say(f"{len(created)} topics created")
        tokens = await making_keys
        await self._start_postgresql()
        self.tray = self._fault_tray(bootstrap, bus)
        first, others = service_specs(
            self.data_dir,
            bootstrap=bootstrap,
            bus=bus,
            ports=ports,
            silent_after_s=silent_after_s(options.rides.speed, options.rides.location_every_s),
            declines_percent=options.declines_percent,
            faults=None if self.tray is None else await self.tray.serve(),
            booking_database=self._booking_database(),
        )
        for spec in first:
            await self.supervisor.start(spec)
        await self._unless_interrupted(self.supervisor.wait_ready(*names(first)))
        if self.areas:
            say(f"{len(self.areas)} regions of booking: {', '.join(area.name for area in self.areas)}; one router")
        say(f"booking's API at {ports.url('booking')}/docs, the recommender's at {ports.url('recommender')}/docs")
        say(f"payment's at {ports.url('payment')}/docs, the payment provider's at {ports.url('payment-provider')}/docs")
        say(f"schema registry at {ports.url('registry')}: hailbus registry ls --url {ports.url('registry')}")
        say(f"tokens for booking: booking-token sign {self.data_dir.keys / 'signing-key.json'} ROLE SUBJECT")
        booking = SureClient(
            HttpClient(ports.url("booking"), connections=options.rides.in_flight),
            name="booking",
            deadline_s=SERVICE_DEADLINE_S,
            tokens=tokens,
        )
        advice = RecommenderClient(
            SureClient(HttpClient(ports.url("recommender")), name="recommender", deadline_s=SERVICE_DEADLINE_S),
            self.source.city,
        )
        book = Book(self.data_dir.book)
        consumers = consumers_of([area.name for area in self.areas])
        watch = Watch(
            bus,
            topics=TOPIC_NAMES,
            consumers=consumers,
            lake_dir=self.data_dir.lake if options.spark else None,
        )
        stage = Stage(speed=options.rides.speed, limit=options.rides.in_flight)
        figures = Figures(
            run=self.state.run,
            speed=options.rides.speed,
            book=book,
            stage=stage,
            watch=watch,
            supervisor=self.supervisor,
            traffic=booking.traffic,
            timings=self.timings,
            rides_before=len(book.rides),
        )
        watch.has_lake = lambda: (
            "lake" not in self.supervisor.children or self.supervisor.children["lake"].state != "failed"
        )
        await watch.start()
        self.screen.figures = figures
        writer = asyncio.create_task(self._keep_writing(figures))
        scene = Scene(
            bus=bus,
            bootstrap=bootstrap,
            log_files=self.data_dir.broker if options.bootstrap is None and options.brokers == 1 else None,
            databases=self.data_dir.databases,
            lake_dir=self.data_dir.lake if options.spark else None,
            supervisor=self.supervisor,
            event_time=lambda: to_datetime(stage.now_ms),
        )
        plan = AuditPlan(
            sources=Sources(
                bootstrap=bootstrap,
                databases=self._databases(),
                consumers=consumers,
                book=book.account,
                journal=self.data_dir.journal,
                lake_dir=self.data_dir.lake if options.spark else None,
                restarted=self._restarted,
                poison=lambda: tuple(self.poison.copies),
                ended=lambda: self.played_to_the_end,
            ),
            deadline_s=options.catch_up_s,
        )
        auditor = Auditor(
            plan.sources,
            serves=self._serves,
            keeps_up=lambda: watch.keeps_up(within_s=KEEPS_UP_WITHIN_S),
            broker_life=self._broker_life,
            take=self._taker(figures),
        )
        book.begin()
        auditor.start()
        try:
            async with self.screen, driver_apps(bus) as locations:
                # Not before: on two cores the first ride would wait for them.
                for spec in others:
                    await self.supervisor.start(spec)
                self.others_ready = asyncio.create_task(self._wait_for(names(others)))
                if lake_ready is not None:
                    self.lake_start = asyncio.create_task(self._start_lake(lake_ready, bootstrap))
                world = await self._play(figures, booking, advice, locations, scene)
                if self.lake_start is not None:
                    # A run that is stopped early still gets its ledger, and the lake is a part of it.
                    await self._unless_insisted(self.lake_start, lost="no ledger was drawn up")
                code = await self._settle_accounts(plan, figures, watch, auditor, world)
        finally:
            await auditor.stop()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            if self.tray is not None:
                await self.tray.end()
            await watch.stop()
            book.close()
            starting = [task for task in (self.others_ready, self.lake_start) if task is not None]
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
        self._write(figures)
        self._print_end(figures)
        if not options.exit_when_done and not self.interrupts.asked.is_set():
            say(f"the city is at rest; look around at {ports.url('dashboard')}, Ctrl-C ends")
            await self._first(self.interrupts.asked.wait(), self.supervisor.failure)
        return code

    async def _start_brokers(self, port: int) -> str:
        """Start the in-house broker, or a cluster of them; return its address."""
        if self.options.brokers == 1:
            bootstrap, specs = f"{HOST}:{port}", [broker_spec(self.data_dir, port)]
        else:
            bootstrap, specs = await cluster_specs(self.data_dir, port, self.options.brokers)
        for spec in specs:
            await self.supervisor.start(spec)
        await self._unless_interrupted(self.supervisor.wait_ready(*names(specs)))
        self.screen.say(f"broker at {bootstrap}" if len(specs) == 1 else f"{len(specs)} brokers at {bootstrap}")
        return bootstrap

    async def _start_postgresql(self) -> None:
        """Start the database that regions share, and write down who owns what."""
        if self.postgresql is None:
            return
        assert self.ports.postgresql is not None
        await self._unless_interrupted(self.postgresql.set_up())
        spec = self.postgresql.spec(self.data_dir, self.ports.postgresql)
        await self.supervisor.start(spec)
        await self._unless_interrupted(self.supervisor.wait_ready(spec.name))
        addresses = {region: f"http://{HOST}:{port}" for region, port in self.ports.regions.items()}
        write_regions(self.data_dir.regions, self.areas, addresses)

    def _booking_database(self, *, search_path: str | None = None) -> str | None:
        """Return the URL of the database that regions share, None where one process serves everywhere."""
        if self.postgresql is None:
            return None
        assert self.ports.postgresql is not None
        return self.postgresql.url(self.ports.postgresql, search_path=search_path)

    def _databases(self) -> dict[str, str]:
        """Return where the ledger reads each service's tables."""
        found = {name: self.data_dir.database_url(name) for name in DATABASES}
        whole_city = self._booking_database(search_path=WHOLE_CITY)
        return found if whole_city is None else {**found, "booking": whole_city}

    def _fault_tray(self, bootstrap: str, bus: Bus) -> FaultTray | None:
        """Return the faults that the page offers; none in a run that is disturbed anyway."""
        if self.options.is_disturbed:
            return None
        return FaultTray(
            self.supervisor,
            say=self.screen.say,
            provider_url=self.ports.url("payment-provider"),
            bus=bus,
            poison=self.poison,
            demand=self.demand,
            brokers=BrokersByRole(bootstrap, self.supervisor) if self.options.brokers > 1 else None,
            regions=[area.name for area in self.areas],
        )

    def _choose_ports(self) -> Ports:
        options = self.options
        # A broker of a cluster has a second port, for the controllers.
        count = 1 if options.brokers == 1 else 2 * options.brokers
        broker = None
        wanted = SERVICE_PORTS + (1 + len(self.areas) if self.areas else 0)
        if options.bootstrap is None and options.port is None:
            broker = free_block(count + wanted)
            free = list(range(broker + count, broker + count + wanted))
        else:
            free = free_ports(wanted)
        if options.port is not None:
            broker = options.port
            for port in range(broker, broker + count):
                require_free(port, what="--port")
        dashboard = free[0]
        if options.dashboard_port is not None:
            dashboard = require_free(options.dashboard_port, what="--dashboard-port")
        return Ports(
            broker=broker,
            dashboard=dashboard,
            booking=free[1],
            recommender=free[2],
            payment=free[3],
            payment_provider=free[4],
            registry=free[5],
            postgresql=free[6] if self.areas else None,
            regions={area.name: port for area, port in zip(self.areas, free[7:], strict=True)},
        )

    async def _provision(self, bus: Bus, bootstrap: str) -> frozenset[str]:
        try:
            async with asyncio.timeout(60), ClusterAdmin(bus, client_id="demo-provision") as admin:
                if self.options.bootstrap is not None and not self.continues:
                    await self._refuse_old_topics(admin, bootstrap)
                return await admin.provision(TOPICS)
        except (HailbusError, TimeoutError) as error:
            if self.options.bootstrap is None:
                raise RunFailedError(f"the topics cannot be made: {error}") from error
            raise UsageError(
                f"no Kafka-protocol cluster answers at {bootstrap} ({error or 'no answer within 60 s'}): start it, or "
                "correct --bootstrap"
            ) from error

    async def _refuse_old_topics(self, admin: ClusterAdmin, bootstrap: str) -> None:
        """Refuse a cluster with events of a run that this data directory knows nothing of."""
        existing = await admin.topics(None)
        ours = [name for name in TOPIC_NAMES if name in existing]
        ends = await admin.end_offsets(ours) if ours else {}
        full = sorted({tp.topic for tp, end in ends.items() if end > 0})
        if full:
            shown = ", ".join(full[:3]) + (" …" if len(full) > 3 else "")
            raise UsageError(
                f"the topics {shown} at {bootstrap} hold events of another run: delete them there, or continue that "
                "run by its --data-dir"
            )

    async def _set_up_lake(self) -> None:
        """Fetch what Spark needs; the bars of the first time are the command's own."""
        process = await asyncio.create_subprocess_exec(command("lake"), "setup", stdin=asyncio.subprocess.DEVNULL)
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if code != 0:
            raise RunFailedError("Spark's parts cannot be fetched (see above): mend it, or go without by --no-spark")

    async def _wait_for(self, others: Sequence[str]) -> None:
        """Wait until those who hear of rides serve, while the first ones begin; then show the page."""
        url = self.ports.url("dashboard")
        try:
            await self.supervisor.wait_ready(*others)
        except RunFailedError as error:  # as if it could not be kept running
            if not self.supervisor.failure.done():
                self.supervisor.failure.set_exception(error)
            raise
        self.timings.services_ready = time.monotonic()
        self.screen.say(f"services are ready; dashboard: {url}")
        self.screen.dashboard_url = url
        if self.options.browser and self.console.is_terminal:
            await asyncio.to_thread(webbrowser.open, url)

    async def _start_lake(self, ready: asyncio.Task[None], bootstrap: str) -> None:
        await ready
        await self.supervisor.start(lake_spec(self.data_dir, bootstrap=bootstrap))
        await self.supervisor.wait_ready("lake")
        self.screen.say(f"the lake is open after {self.supervisor.children['lake'].ready_after_s or 0:.0f} s")

    async def _play(
        self, figures: Figures, booking: SureClient, advice: RecommenderClient, locations: LocationFeed, scene: Scene
    ) -> World:
        """Play the rides until they have ended or somebody asks to stop; return who played them."""
        options, stage = self.options.rides, figures.stage
        every_ms, busy = report_every(options.speed, options.location_every_s)
        world = World(
            stage=stage,
            booking=booking,
            book=figures.book,
            run=f"r{self.state.run}",
            locations=locations,
            location_every_ms=every_ms,
            busy_locations=busy,
            advice=advice,
            region_of=partial(region_at, areas=self.areas) if self.areas else None,
        )
        if self.continues:
            adopted = await world.adopt()
            self.screen.say(f"run {self.state.run} continues the last one: {adopted} rides were under way")
        figures.phase = "running"
        self.timings.first_ride = time.monotonic()
        disturber = self._disturber(scene, figures)
        disturbing = asyncio.create_task(self._disturb(disturber, figures))
        playing = asyncio.create_task(world.play(self.demand.added_to(self.source.plans())))
        ends = asyncio.create_task(self._end_asked())
        watched: list[asyncio.Future[Any]] = [playing, ends, self.supervisor.failure]
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if self.supervisor.failure.done():
                self.supervisor.failure.result()
            if self.tray is not None:
                self.tray.close()
            interrupted = not playing.done()
            self.played_to_the_end = not interrupted
            if interrupted:
                figures.phase = "stopping"
                if self.interrupts.asked.is_set():
                    self.screen.say(
                        "stopping: no new ride begins, then the ledger is drawn up (Ctrl-C again: quit at once)"
                    )
                stage.stop()
            await self._unless_insisted(playing, lost="rides under way were left alone")
            if not interrupted:
                await world.settle(past_ms=stage.now_ms + ENDS_WITHIN_MS)
                stage.now_ms += ENDS_WITHIN_MS
            await locations.close()
            figures.book.end()
            self.timings.rides_done = time.monotonic()
            figures.phase = "catching_up"
            self._save_clock(stage)
            if disturber is not None:
                disturber.hurry.set()
            await self._unless_insisted(disturbing, lost="no ledger was drawn up")
            if self.tray is not None:
                await self._unless_insisted(asyncio.create_task(self.tray.finish()), lost="no ledger was drawn up")
        except GaveUpError as error:
            raise RunFailedError(str(error)) from error
        finally:
            begun: tuple[asyncio.Task[Any], ...] = (playing, ends, disturbing)
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
        if (what := self.source.describe()) is not None:
            self.screen.say(what)
        if self.source.files is not None and self.source.files.counts.rejected:
            self.screen.say(f"rejected rows are in {self.data_dir.rejects}")
        return world

    async def _disturb(self, disturber: Disturber | None, figures: Figures) -> None:
        """Let faults begin, as soon as every process serves."""
        assert self.others_ready is not None
        await asyncio.shield(self.others_ready)
        if self.tray is not None and figures.phase == "running" and not self.played_to_the_end:
            self.tray.open(figures.watch)
        if disturber is not None:
            await disturber.run()

    def _disturber(self, scene: Scene, figures: Figures) -> Disturber | None:
        """Return who disturbs the run, if it was asked for."""
        options = self.options.rides
        began = time.monotonic()

        def share_done() -> float | None:
            return figures.share_of(options, ran_s=time.monotonic() - began)

        figures.share_done = share_done
        if self.options.sabotage is not None:
            sabotage = figures.sabotage = Sabotage(fault=self.options.sabotage.name)

            # Spark refuses a log that lost what it has read, and rightly: the ledger is drawn up without it.
            self.supervisor.expendable.add("lake")

            def done(deed: Deed) -> None:
                sabotage.deed = deed

            return Saboteur(self.options.sabotage, scene, share_done=share_done, say=self.screen.say, done=done)
        if self.options.outage is not None:
            return OutageOfProvider(
                self.options.outage, self.ports.url("payment-provider"), share_done=share_done, say=self.screen.say
            )
        if not self.options.chaos:
            return None
        brokers = BrokersByRole(scene.bootstrap, scene.supervisor) if self.options.brokers > 1 else None
        bookings = [name for name in self.supervisor.children if is_booking(name) or name == ROUTER]
        services = [name for victim in VICTIMS for name in (bookings if victim == "booking" else [victim])]
        victims = [
            victim
            for victim in (services if brokers is None else (*CLUSTER_VICTIMS, *services))
            if victim in self.supervisor.children
            or (victim == "lake" and self.options.spark)
            or (brokers is not None and victim in CLUSTER_VICTIMS)
        ]
        plan = None
        if self.options.kills is not None:
            # The event logger is no victim of the plain proof, which is about what it writes down.
            plan = Plan.draw([*victims, "event-logger", "dashboard"], kills=self.options.kills, seed=options.seed)
            self.screen.say(f"chaos plan of seed {options.seed}: {plan}")
        figures.chaos = Chaos(
            self.supervisor,
            victims if plan is None else [victim for _, victim in plan.kills],
            brokers=brokers,
            lake=self.lake_start,
            share_done=share_done,
            say=self.screen.say,
            moments=None if plan is None else [moment for moment, _ in plan.kills],
            overlaps=plan is not None,
        )
        if plan is None:
            return figures.chaos
        url, say = self.ports.url("payment-provider"), self.screen.say
        return ChaosWithOutages(
            figures.chaos,
            [
                OutageOfProvider(kind, url, share_done=share_done, say=say, begins=begins, ends=ends)
                for begins, ends, kind in plan.outages
            ],
        )

    async def _end_asked(self) -> None:
        duration_s = self.options.rides.duration_s
        try:
            async with asyncio.timeout(duration_s):
                await self.interrupts.asked.wait()
        except TimeoutError:
            return

    async def _settle_accounts(
        self, plan: AuditPlan, figures: Figures, watch: Watch, auditor: Auditor, world: World
    ) -> int:
        try:
            behind, caught_up_at = await self._unless_insisted(
                asyncio.create_task(catch_up(plan, watch)), lost="no ledger was drawn up"
            )
            await world.recheck()
            lake_dir = plan.sources.lake_dir
            if lake_dir is not None:
                behind |= await self._finish_lake(lake_dir, watch)
                watch.look_at_lake()
                caught_up_at = time.monotonic()
            self._say_late(behind)
            self.timings.caught_up = caught_up_at
            figures.phase = "checking"
            await auditor.stop()
            ledger = await draw_up(plan, figures)
        except GaveUpError as error:
            raise RunFailedError(str(error)) from error
        figures.phase = "done"
        if figures.sabotage is None:
            return ledger.exit_code
        figures.sabotage.find(ledger)
        return 1

    def _serves(self) -> bool:
        """Return whether every process but the lake serves."""
        return all(child.state == "ready" for name, child in self.supervisor.children.items() if name != "lake")

    def _broker_life(self) -> tuple[int | None, ...] | None:
        """Return the brokers' process ids; on another cluster nobody knows when they restart."""
        pids = tuple(child.pid for name, child in self.supervisor.children.items() if is_broker(name))
        return pids or None

    def _taker(self, figures: Figures) -> Callable[[Round], None]:
        red: set[str] = set()

        def take(found: Round) -> None:
            """Show a ledger so far, and say which lines have begun to disagree."""
            if not figures.so_far:
                return
            ledger = updated(figures.ledger, found)
            if ledger is None:
                return
            figures.ledger = ledger
            figures.audit.note(took_s=found.took_s, cpu_s=found.cpu_s)
            now_red = {line.id for line in ledger.lines if line.verdict == "disagrees"}
            for line in ledger.lines:
                if line.id in now_red - red:
                    self.screen.say(f"ledger so far: NOT balanced: {line.name}: {line.detail}")
            red.clear()
            red.update(now_red)

        return take

    def _say_late(self, behind: Mapping[str, int]) -> None:
        late = ", ".join(f"{name} by {count:,}" for name, count in sorted(behind.items()) if count)
        if late:
            self.screen.say(f"still behind at the deadline: {late}")

    def _restarted(self) -> frozenset[str]:
        """Return the processes that were restarted, or whose events a click has repeated.

        Runs before this one, on the same log, count as restarts of all.
        """
        children = self.supervisor.children
        if self.continues:
            return frozenset({*children, "broker", "booking"})
        restarted = {name for name, child in children.items() if child.restarts}
        if self.tray is not None and self.tray.has_repeated:
            restarted.add("booking")
        for name, is_one in (("broker", is_broker), ("booking", is_booking)):
            if any(map(is_one, restarted)):
                restarted.add(name)
        return frozenset(restarted)

    async def _finish_lake(self, lake_dir: Path, watch: Watch) -> dict[str, int]:
        """Have the Spark job bring silver and gold up to bronze and end; return it as late if it does not."""
        (lake_dir / LAKE_FINISH).touch()
        ended = asyncio.create_task(self.supervisor.let_end("lake"))
        stamp, deadline = "", time.monotonic() + self.options.catch_up_s
        while not ended.done() and time.monotonic() < deadline:
            await self._first(ended, self.supervisor.failure, self.interrupts.insisted.wait(), asyncio.sleep(2))
            if self.interrupts.insisted.is_set():
                ended.cancel()
                raise RunFailedError("stopped at once, as asked: no ledger was drawn up")
            watch.look_at_lake()
            if watch.lake.stamp != stamp:
                stamp, deadline = watch.lake.stamp, time.monotonic() + self.options.catch_up_s
        if not ended.done():
            ended.cancel()
            return {"the lake's silver and gold": 1}
        return {} if ended.result() else {"the lake's silver and gold": 1}

    def _print_end(self, figures: Figures) -> None:
        state = figures.as_json()
        self.console.print(ledger_table(state))
        self.console.print(figures_table(state))
        if state["kills"]:
            self.console.print(kills_table(state, title="Chaos"))
        if self.options.summary is not None:
            write_whole(self.options.summary, json.dumps(state, indent=2) + "\n")
        if not state["balanced"]:
            self.console.print(what_is_wrong(figures.lines), style="bold red", soft_wrap=True, markup=False)
        if figures.sabotage is not None:
            self.console.print(figures.sabotage.verdict(), style="bold", soft_wrap=True, markup=False)

    async def _keep_writing(self, figures: Figures) -> None:
        while True:
            self._write(figures)
            self._save_clock(figures.stage)
            await asyncio.sleep(BOOK_EVERY_S)

    def _write(self, figures: Figures) -> None:
        write_whole(self.data_dir.ledger, json.dumps(figures.as_json()) + "\n")

    def _save_clock(self, stage: Stage) -> None:
        if stage.now_ms and stage.now_ms != self.state.clock_ms:
            self.state = replace(self.state, clock_ms=max(stage.now_ms, self.state.clock_ms or 0))
            self.data_dir.save(self.state)

    async def _unless_interrupted(self, work: Any) -> None:
        """Wait for something, unless the user wants to stop or a process is given up."""
        task = asyncio.ensure_future(work)
        await self._first(task, self.supervisor.failure, self.interrupts.asked.wait())
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise RunFailedError("stopped before the city was ready")
        task.result()

    async def _unless_insisted(self, task: asyncio.Task[T], *, lost: str) -> T:
        """Wait for something that a first Ctrl-C lets end, unless the user insists or a process is given up."""
        await self._first(task, self.supervisor.failure, self.interrupts.insisted.wait())
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise RunFailedError(f"stopped at once, as asked: {lost}")
        return task.result()

    async def _first(self, *works: Any) -> None:
        """Wait until the first of several is done; a failed process is raised."""
        tasks = [asyncio.ensure_future(work) for work in works]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for work, task in zip(works, tasks, strict=True):
            if task is not work:
                task.cancel()
        if self.supervisor.failure.done():
            self.supervisor.failure.result()

    async def _stop_processes(self) -> None:
        """Services first, then the lake and PostgreSQL, the broker last; whatever happens nothing is left."""
        try:
            brokers = [name for name in self.supervisor.children if is_broker(name)]
            last = ("lake", POSTGRESQL, *brokers)
            services = [name for name in self.supervisor.children if name not in last]
            await self.supervisor.stop(*services)
            await self.supervisor.stop("lake", POSTGRESQL)
            await self.supervisor.stop(*brokers)
        finally:
            self.supervisor.kill_all()


def _log_to(path: Path) -> None:
    """Send what libraries log to a file: the terminal belongs to the progress."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


async def refuse_silence(bootstrap: str) -> None:
    """Refuse a cluster of which no address accepts a connection, before anything is started.

    Raises:
        UsageError: Nobody answers.
    """
    addresses = [parse_address(part, option="--bootstrap") for part in bootstrap.split(",")]
    deadline = time.monotonic() + REACHABLE_WITHIN_S
    while time.monotonic() < deadline:
        for host, port in addresses:
            if await asyncio.to_thread(accepts, host, port):
                return
        await asyncio.sleep(0.5)
    raise UsageError(f"nobody answers at {bootstrap}: start the cluster, or correct --bootstrap")
