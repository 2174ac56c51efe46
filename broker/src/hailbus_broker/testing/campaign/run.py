"""Runs a scenario: clients work while faults come, then everything is healed, and what was promised is checked."""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, assert_never

import structlog

from hailbus_broker.client import RefusedError, UnreachableError
from hailbus_broker.protocol.api import ApiKey
from hailbus_broker.protocol.definitions.fetch_request import FetchPartition, FetchRequest, FetchTopic
from hailbus_broker.protocol.errors import ErrorCode
from hailbus_broker.records import BatchView, iterate_batches
from hailbus_broker.testing.campaign.cluster import Cluster
from hailbus_broker.testing.campaign.context import EARLIEST, LATEST, Context, Stop, TopicReader, list_offsets
from hailbus_broker.testing.campaign.groups import AutoCommitMember, Copier, OffsetCommitter
from hailbus_broker.testing.campaign.probes import Prober
from hailbus_broker.testing.campaign.producers import (
    Abandoner,
    IdempotentProducer,
    LooseProducer,
    PlainProducer,
    TransactionalProducer,
)
from hailbus_broker.testing.campaign.readers import AssignedReader, ListReader, TableReader, TimeLister, key_read
from hailbus_broker.testing.campaign.recorder import COPY, LOOSE, MAIN, TABLE, TRIMMED, Recorder
from hailbus_broker.testing.campaign.routing import client_for
from hailbus_broker.testing.campaign.scenario import has_guests
from hailbus_broker.testing.campaign.single import SingleBroker
from hailbus_broker.testing.campaign.subject import Clients
from hailbus_broker.testing.campaign.writers import (
    TableWriter,
    TopicMaker,
    TransactionalTableWriter,
    Trimmer,
)
from hailbus_broker.testing.history import History, KeyRead, Polled, Stored, violations
from hailbus_broker.testing.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping

    from hailbus_broker.client import Client
    from hailbus_broker.testing.campaign.context import Found
    from hailbus_broker.testing.campaign.guests import Guests, MakeGuests, RunningClient
    from hailbus_broker.testing.campaign.scenario import PlannedClient, Scenario
    from hailbus_broker.testing.campaign.subject import Subject
    from hailbus_broker.testing.simulation.process import SimulatedProcess

T = TypeVar("T")
PROGRESS_DEADLINE_S: Final = 90.0
"""How long after the heal each client may take until it has achieved something."""
END_DEADLINE_S: Final = 120.0
LEAST_RETAINED: Final = 10
"""Records of 300 bytes that retention by size leaves at least: 6,000 bytes without a segment of 2,000."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a scenario.

    Attributes:
        problems: What each check found, by its name; empty if all is well.
        notes: How often what matters was reached.
        digest: Of the trace.
        lines: The end of the trace.
        simulated_s: Virtual time.
        request_count: Produce requests that were acknowledged.
    """

    problems: dict[str, list[str]]
    notes: Counter[str]
    digest: str
    lines: list[str] = field(default_factory=list)
    simulated_s: float = 0.0
    request_count: int = 0


def client_of(planned: PlannedClient, context: Context, guests: Guests | None) -> RunningClient:
    """Make what runs in a client's process."""
    match planned.kind:
        case "idempotent producer":
            return IdempotentProducer(context)
        case "plain producer":
            return PlainProducer(context)
        case "loose producer":
            return LooseProducer(context)
        case "transactions v1" | "transactions v2":
            return TransactionalProducer(context, is_v2=planned.kind == "transactions v2")
        case "abandoner":
            return Abandoner(context)
        case "committed reader" | "uncommitted reader":
            return AssignedReader(context, is_committed=planned.kind == "committed reader")
        case "list reader":
            return ListReader(context)
        case "auto-commit member":
            return AutoCommitMember(context)
        case "copier v1" | "copier v2":
            return Copier(context, is_v2=planned.kind == "copier v2")
        case "offset committer":
            return OffsetCommitter(context)
        case "table writer":
            return TableWriter(context)
        case "transactional table writer":
            return TransactionalTableWriter(context)
        case "table reader":
            return TableReader(context)
        case "trimmer":
            return Trimmer(context)
        case "topic maker":
            return TopicMaker(context)
        case "time lister":
            return TimeLister(context)
        case "prober":
            return Prober(context)
        case (
            "aiokafka producer"
            | "aiokafka transactions"
            | "aiokafka copier"
            | "aiokafka member"
            | "aiokafka reader"
            | "shop service"
            | "till service"
        ):
            assert guests is not None
            return guests.client(planned.kind, context)
        case _:
            assert_never(planned.kind)


class Campaign:
    """One run of a scenario in a world.

    Args:
        world: Where it runs.
        scenario: What happens.
        make_guests: Makes the clients that are not of this package.
    """

    def __init__(self, world: World, scenario: Scenario, make_guests: MakeGuests | None = None) -> None:
        self._world: Final = world
        self._scenario: Final = scenario
        self.recorder: Final = Recorder(world.note)
        self._guests: Final = make_guests(world, self.recorder) if make_guests and has_guests(scenario) else None
        self.guest_problems: Mapping[str, list[str]] = {}
        self._stop: Final = Stop()
        self._planned: Final = {client.name: client for client in scenario.clients}
        self._processes: Final[dict[str, SimulatedProcess]] = {}
        self._tasks: Final[dict[str, asyncio.Task[None]]] = {}
        self._lives: Final[Counter[str]] = Counter()
        self._clients: Final = Clients(self._crash_client, self._processes.__getitem__, self._guests)
        self._subject: Final[Subject] = (
            SingleBroker(world, scenario, self.recorder, self._clients)
            if scenario.nodes is None
            else Cluster(world, scenario, scenario.nodes, self.recorder, self._clients)
        )
        self.recorder.when_acked = self._subject.acked
        self.recorder.when_ended = self._subject.ended
        self._is_watching = True

    # ------------------------------------------------------------------ clients

    def _start_client(self, name: str) -> None:
        planned = self._planned[name]
        life = self._lives[name]
        self._lives[name] += 1
        process = self._processes[name] = self._world.process(name)
        context = Context(
            name=name,
            life=life,
            rate=planned.rate,
            bootstrap=self._subject.bootstrap,
            partition_count=self._scenario.partition_count,
            rng=self._world.rng(f"client/{name}/{life}"),
            recorder=self.recorder,
            stop=self._stop,
            process=process,
            is_cluster=self._scenario.nodes is not None,
            rack=planned.rack,
        )
        task = process.start(client_of(planned, context, self._guests).run(), name=name)
        task.add_done_callback(partial(self._client_ended, name))
        self._tasks[name] = task

    def _client_ended(self, name: str, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self.recorder.fail(f"{name} was cancelled")
        elif (error := task.exception()) is not None:
            lines = "".join(traceback.format_exception(error)[-3:])
            self.recorder.fail(f"{name} ended by {error!r}: {lines}")

    def _crash_client(self, name: str, away_s: float) -> None:
        process = self._processes[name]
        if not process.is_alive or self._stop.is_set:
            return
        process.kill()
        self._world.note("client killed")
        self._world.loop.after(away_s, partial(self._restart_client, name))

    def _restart_client(self, name: str) -> None:
        if not self._processes[name].is_alive and not self._stop.is_set:
            self._start_client(name)

    # ------------------------------------------------------------------ the whole

    async def run(self) -> History:
        """Work, break, heal, check that everybody gets on, and read everything."""
        await self._subject.start()
        client = client_for(self._subject.bootstrap, "campaign", timeout_s=5.0, rng=self._world.rng("campaign"))
        await self._create_topics(client)
        for name in self._planned:
            self._start_client(name)
        self._watch()
        faults = [asyncio.ensure_future(self._subject.apply(fault)) for fault in self._scenario.faults]
        await asyncio.sleep(self._scenario.duration_s)
        for fault in faults:
            fault.cancel()
        await asyncio.gather(*faults, return_exceptions=True)
        for fault in faults:
            if not fault.cancelled() and (error := fault.exception()) is not None:
                raise error
        await self._subject.heal()
        self._revive()
        await self._see_progress()
        await self._end_clients()
        await self._end_transactions(client)
        return await self._read_all(client)

    def _revive(self) -> None:
        for name, process in list(self._processes.items()):
            process.resume()
            if not process.is_alive:
                self._start_client(name)

    async def _create_topics(self, client: Client) -> None:
        count = self._scenario.partition_count
        small = str(self._scenario.segment_bytes)
        compacted = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.05",
            "segment.bytes": "1500",
            "segment.ms": "1200",
        }
        trimmed = {"retention.bytes": "6000", "segment.bytes": "2000"}
        topics = [(MAIN, {"segment.bytes": small}), (COPY, {}), (TABLE, compacted), (TRIMMED, trimmed)]
        if self._scenario.nodes is not None:
            topics.append((LOOSE, {}))
        for name, configs in topics:
            await self._subject.create_topic(client, name, count, configs)

    async def _see_progress(self) -> None:
        before = Counter(self.recorder.progress)
        end_s = self._world.loop.now_s + PROGRESS_DEADLINE_S
        waiting = list(self._planned)
        while waiting and self._world.loop.now_s < end_s:
            await asyncio.sleep(0.2)
            waiting = [name for name in waiting if self.recorder.progress[name] == before[name]]
        for name in waiting:
            self.recorder.fail(f"{name} made no progress within {PROGRESS_DEADLINE_S:.0f} s after the last fault")

    async def _end_clients(self) -> None:
        self._stop.is_set = True
        _, pending = await asyncio.wait(self._tasks.values(), timeout=END_DEADLINE_S)
        for name, task in self._tasks.items():
            if task in pending:
                self.recorder.fail(f"{name} did not end within {END_DEADLINE_S:.0f} s")
                self._processes[name].kill()
        # What a client sent before it was killed may have waited for the network: it is written when it arrives.
        end_s = self._world.loop.now_s + END_DEADLINE_S
        while self._world.network.has_late_bytes and self._world.loop.now_s < end_s:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.1)

    async def _end_transactions(self, client: Client) -> None:
        """Wait until no transaction is open: clients that were killed and had no successor have left theirs."""
        end_s = self._world.loop.now_s + END_DEADLINE_S
        places = range(self._scenario.partition_count)
        while True:
            ends = [
                await self._patiently(partial(list_offsets, client, topic, places, [LATEST], is_committed=is_committed))
                for topic in (MAIN, COPY, TABLE)
                for is_committed in (False, True)
            ]
            if ends[0::2] == ends[1::2]:
                return
            if self._world.loop.now_s > end_s:
                self.recorder.fail(f"transactions stay open: the topics end at {ends[0::2]}, stable is {ends[1::2]}")
                return
            await asyncio.sleep(0.5)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        for attempts_left in reversed(range(50)):
            try:
                return await ask()
            except (UnreachableError, RefusedError):
                if not attempts_left:
                    raise
                await asyncio.sleep(0.2)
        raise AssertionError

    # ------------------------------------------------------------------ the state of the broker

    def heard(self, event: Mapping[str, Any]) -> None:
        """Take in what a broker has logged."""
        self._subject.heard(event)

    def _watch(self) -> None:
        """Look at what the subject itself knows, again and again."""
        if not self._is_watching:
            return
        self._subject.look()
        self._world.loop.after(self._scenario.checks_every_s, self._watch)

    # ------------------------------------------------------------------ the end

    async def _read_all(self, client: Client) -> History:
        recorder = self.recorder
        final = await self._read_topic(client, MAIN, is_committed=True)
        raw = await self._read_topic(client, MAIN, is_committed=False)
        copied = await self._read_topic(client, COPY, is_committed=True)
        stored = await self._stored(client)
        reads = dict(recorder.key_reads)
        reads["final"] = await self._read_table(client)
        self._check_trimmed(await self._read_topic(client, TRIMMED, is_committed=False))
        self._is_watching = False
        await self._subject.check()
        await self._subject.cut_power()
        again = await self._read_topic(client, MAIN, is_committed=True)
        reads["final, after a power cut"] = await self._read_table(client)
        for name in recorder.key_positions:
            reads[name] = await self._read_on(client, name, reads[name])
        if self._guests is not None:
            self.guest_problems = await self._guests.check(partial(self._contents, client))
        return History(
            sent=[op.to_sent() for op in recorder.sends],
            polled=recorder.polled,
            final=final,
            transactions={number: op.outcome for number, op in recorder.transactions.items()},
            offsets=recorder.offsets,
            copied=copied,
            stored=stored,
            handed=recorder.handed,
            lists=recorder.lists,
            uncommitted=recorder.uncommitted,
            raw=raw,
            again=again,
            watermarks=recorder.watermarks,
            acked=recorder.acked,
            deleted=recorder.deleted,
            owned=recorder.owned,
            lookups=recorder.lookups,
            key_writes=recorder.key_writes(),
            key_reads=reads,
            attempted=recorder.attempted(MAIN),
            identified=recorder.identified,
        )

    def _context(self) -> Context:
        return Context(
            name="final",
            life=0,
            rate=1.0,
            bootstrap=self._subject.bootstrap,
            partition_count=self._scenario.partition_count,
            rng=self._world.rng("final"),
            recorder=self.recorder,
            stop=self._stop,
            process=self._world.main,
            is_cluster=self._scenario.nodes is not None,
        )

    async def _contents(self, client: Client, topic: str, partition_count: int) -> list[Found]:
        """Read what is committed in a topic of the guests."""
        if not self._subject.has_topic(topic):
            return []
        return await self._records(client, topic, is_committed=True, start=dict.fromkeys(range(partition_count), 0))

    async def _records(self, client: Client, topic: str, *, is_committed: bool, start: dict[int, int]) -> list[Found]:
        """Read partitions from given offsets to their ends."""
        places = list(start)
        ends = await self._patiently(partial(list_offsets, client, topic, places, [LATEST], is_committed=is_committed))
        reader = TopicReader(self._context(), client, topic, is_committed=is_committed)
        reader.positions.update(start)
        found: list[Found] = []
        for _ in range(10_000):
            if all(reader.positions[index] >= ends[index, LATEST] for index in places):
                return found
            found += await self._patiently(partial(reader.poll, max_wait_ms=100))
        self.recorder.fail(f"{topic} cannot be read to its end: {reader.positions} of {ends}")
        return found

    async def _read_topic(self, client: Client, topic: str, *, is_committed: bool) -> list[Polled]:
        places = range(self._scenario.partition_count)
        starts = await self._patiently(partial(list_offsets, client, topic, places, [EARLIEST]))
        start = {index: starts[index, EARLIEST] for index in places}
        return [
            Polled(
                process="final",
                life=0,
                partition=record.partition,
                offset=record.offset,
                value=int(record.value or b"-1"),
            )
            for record in await self._records(client, topic, is_committed=is_committed, start=start)
        ]

    async def _read_table(self, client: Client) -> list[KeyRead]:
        start = dict.fromkeys(range(self._scenario.partition_count), 0)
        return [key_read(found) for found in await self._records(client, TABLE, is_committed=True, start=start)]

    async def _read_on(self, client: Client, name: str, reads: list[KeyRead]) -> list[KeyRead]:
        """Let a reader of the compacted topic read the rest."""
        start = self.recorder.key_positions[name]
        rest = await self._records(client, TABLE, is_committed=True, start=start)
        return [*reads, *map(key_read, rest)]

    def _check_trimmed(self, found: list[Polled]) -> None:
        """What was acknowledged and not deleted is there."""
        first: dict[int, int] = {}
        values = {}
        counts: Counter[int] = Counter()
        for poll in found:
            first.setdefault(poll.partition, poll.offset)
            values[poll.partition, poll.offset] = poll.value
            counts[poll.partition] += 1
        for partition in range(self._scenario.partition_count):
            asked = max((end for (index, end) in self.recorder.asked_deletions if index == partition), default=0)
            start = first.get(partition, asked)
            if start > asked and counts[partition] < LEAST_RETAINED:
                self.recorder.fail(
                    f"{TRIMMED}-{partition} begins at {start} with {counts[partition]} records; deletions up to "
                    f"{asked} were asked for, and its size allows for more"
                )
        for op in self.recorder.trimmed:
            if op.offset is None or op.partition not in first or op.offset < first[op.partition]:
                continue
            if values.get((op.partition, op.offset)) != op.value:
                where = f"{TRIMMED}-{op.partition}, offset {op.offset}"
                self.recorder.fail(f"{where}: {op.value} was acked, {values.get((op.partition, op.offset))} is there")

    async def _stored(self, client: Client) -> list[Stored]:
        """Read all batches of the main topic, with their headers."""
        found = []
        for partition in range(self._scenario.partition_count):
            offset = 0
            while views := await self._patiently(partial(self._batches, client, partition, offset)):
                found += [Stored.of(partition, view) for view in views]
                offset = views[-1].header.next_offset
        return found

    async def _batches(self, client: Client, partition: int, offset: int) -> list[BatchView]:
        asked = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=MAIN, partitions=[asked])])
        response = await client.ask(ApiKey.FETCH, 11, request)
        answered = response.responses[0].partitions[0]
        if answered.error_code:
            raise RefusedError(ErrorCode(answered.error_code), f"{MAIN}-{partition} from {offset}")
        return list(iterate_batches(answered.records or b"", whole=False))


@contextmanager
def collected_defects(hear: Callable[[Mapping[str, Any]], object] = lambda _: None) -> Iterator[list[str]]:
    """Collect what the broker logs as a defect of its own; of everything else somebody may hear."""
    found: list[str] = []

    def keep(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
        hear(event)
        if event.get("exc_info"):
            found.append(f"{event.get('event')}: {traceback.format_exc(limit=-3)}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep], cache_logger_on_first_use=False)
    try:
        yield found
    finally:
        structlog.configure(**before)


def run_scenario(scenario: Scenario, *, make_guests: MakeGuests | None = None, keep_trace: int = 200) -> Outcome:
    """Run a scenario in a world of its own.

    Args:
        scenario: What happens.
        make_guests: Makes the clients that are not of this package, if there are any in the scenario.
        keep_trace: How many of the newest lines of the trace to keep.

    Raises:
        ValueError: The scenario has such clients, and nobody makes them.
    """
    if has_guests(scenario) and make_guests is None:
        raise ValueError("the scenario has clients of other packages: give make_guests")
    world = World(scenario.seed, keep_trace=keep_trace)
    campaign: Campaign | None = None
    history: History | None = None
    problems: dict[str, list[str]] = {}

    async def main(world: World) -> History:
        nonlocal campaign
        campaign = Campaign(world, scenario, make_guests)
        return await campaign.run()

    def hear(event: Mapping[str, Any]) -> None:
        if campaign is not None:
            campaign.heard(event)

    with collected_defects(hear) as defects:
        try:
            history = world.run(main)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding with a seed
            problems["the run ended"] = ["".join(traceback.format_exception(error)[-6:])]
    if history is not None:
        problems.update(violations(history))
    if campaign is not None:
        problems.update(campaign.guest_problems)
    if campaign is not None and campaign.recorder.failures:
        problems["failures"] = campaign.recorder.failures
    if defects:
        problems["defects logged by the broker"] = defects[:5]
    if world.unhandled:
        problems["unhandled errors"] = [
            f"{entry.get('message')}: {entry.get('exception')!r}" for entry in world.unhandled[:5]
        ]
    return Outcome(
        problems=problems,
        notes=world.notes,
        digest=world.trace.digest,
        lines=world.trace.lines,
        simulated_s=world.loop.now_s,
        request_count=0 if campaign is None else len(campaign.recorder.acked),
    )
