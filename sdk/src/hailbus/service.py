"""A service: what it publishes, what it handles, and its life from start to drained."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from hailbus._consuming.member import Surroundings
from hailbus._consuming.supervision import Supervisor
from hailbus._failing import Failures, failure_listener
from hailbus._signals import on_stop_signal
from hailbus._threads import HandlerThreads
from hailbus._transport import Bus, Start
from hailbus.admin import ClusterAdmin
from hailbus.catalogue import Catalogue
from hailbus.clock import Clock, utc_now
from hailbus.dead_letter import dead_letter_topic, letter_limit, retry_topic
from hailbus.delivery import AtLeastOnce, Backoff, EffectivelyOnce, ExactlyOnce, Promise, RetryTopics
from hailbus.durations import Durations
from hailbus.errors import ConfigurationError, ServiceFailedError
from hailbus.event import ContentMode, Event, Topic, checked_content_mode, event_info
from hailbus.injection import event_classes
from hailbus.plain import adopting
from hailbus.pruning import Prunable, Pruning
from hailbus.publish_buffer import PublishBuffer, PublisherSettings, PublishStats
from hailbus.publisher import Publisher
from hailbus.registration import EventBatchHandler, EventHandler, Registrar, Registration
from hailbus.subscriber import Subscriber
from hailbus.subscription import SubscriberSettings, Subscription
from hailbus.transactional import TransactionalSubscriber

if TYPE_CHECKING:
    from fastapi import APIRouter
    from typing_extensions import TypeForm

    from hailbus.metering import Metering
    from hailbus.outbox import Outbox
    from hailbus.registry.schemas import Schemas
    from hailbus.router import Router
    from hailbus.tracing import Granularity, Tracing

__all__ = ["EventBatchHandler", "EventHandler", "Service"]

log = logging.getLogger("hailbus.service")

E = TypeVar("E", bound=Event)


@contextmanager
def services_made() -> Iterator[list[Service]]:
    """The services that are made in this context, by whatever code and wherever they end up."""
    made: list[Service] = []
    token = _MADE.set(made)
    try:
        yield made
    finally:
        _MADE.reset(token)


class HasTables(Protocol):
    """Something that keeps tables in the service's database."""

    async def create_tables(self) -> None:
        """Create them where they are missing."""
        ...


DEFAULT_DELIVERY = AtLeastOnce()
_MADE: ContextVar[list[Service] | None] = ContextVar("_MADE", default=None)
FLUSH_TIMEOUT_S = 15.0
DEAD_LETTER_RETENTION = timedelta(days=30)


class Service(Registrar):
    """One service: its publishers, its handlers, its relays.

    ::

        svc = Service("recommender", source="/recommender", bus=KafkaBus(bootstrap_servers="127.0.0.1:9092"))
        pub: Publisher[RecommendationServed] = svc.publishes(RecommendationServed)

        @svc.on
        async def learn(event: RideCompleted) -> None: ...

        asyncio.run(svc.run())

    Start order: provision topics, connect the producer, start relays, join groups. Stop order is the reverse: drain
    handlers and commit, stop relays, flush the producer.

    Args:
        name: Consumer group unless a subscription gives its own, and client id.
        source: CloudEvents source of everything that it publishes, for example `/recommender`.
        bus: Where it runs, unless `running(bus)` says. Without either, the environment variable
            `HAILBUS_BOOTSTRAP_SERVERS` and the others that `hailbus.environment` reads.
        catalogue: All events of the published language. Without it only the classes of this service's own handlers and
            publishers are known, and other types on the same topics count as unknown.
        clock: Gives event times that are not set explicitly.
        provision: Create missing topics, those for dead letters included, at start.
        publishing, subscribing: Bounds.
        tracing: Make OpenTelemetry spans `send <topic>` and `process <topic>`, by the global tracer provider.
            `"per_event"` also makes `publish_many` record a span `create <topic>` for each event; `True` is
            `"per_batch"`.
        metering: Record OpenTelemetry metrics, as `messaging.process.duration`, with the global meter provider.
        schemas: Put schema ids on what is published, and find events by them. See `hailbus.registry.Schemas`.
        content_mode: `structured` for CloudEvents that are whole in the value, where topic and publisher do not say.
        handler_threads: How many handlers that are plain functions run at once, each in a thread.
    """

    def __init__(
        self,
        name: str,
        *,
        source: str | None = None,
        bus: Bus | None = None,
        catalogue: Catalogue | None = None,
        clock: Clock = utc_now,
        provision: bool = True,
        publishing: PublisherSettings | None = None,
        subscribing: SubscriberSettings | None = None,
        tracing: bool | Granularity = False,
        metering: bool = False,
        schemas: Schemas | None = None,
        content_mode: ContentMode = "binary",
        handler_threads: int = 16,
    ) -> None:
        self.name = name
        self.source = source if source is not None else f"/{name}"
        self._bus = bus
        self._catalogue = catalogue
        self._clock = clock
        self._provision = provision
        self._publishing = publishing if publishing is not None else PublisherSettings()
        self._subscribing = subscribing if subscribing is not None else SubscriberSettings()
        self._tracing: Tracing | None = None
        if tracing:
            from hailbus.tracing import Tracing

            self._tracing = Tracing(client_id=name, granularity="per_batch" if tracing is True else tracing)
        self._measures = metering
        self._metering: Metering | None = None
        if metering:
            from hailbus.metering import Metering

            self._metering = Metering(self)
        self._schemas = schemas
        self._content_mode = checked_content_mode(content_mode)
        if handler_threads < 1:
            message = f"service {name}: handler_threads={handler_threads} must be at least 1"
            raise ConfigurationError(message)
        self._threads = HandlerThreads(handler_threads, name)
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        """Replacements of handlers' dependencies in tests, as in FastAPI."""
        self._published: list[type[Event]] = []
        self._structured: set[type[Event]] = set()
        self._subscriptions: list[Subscription] = []
        self._prunings: list[Pruning] = []
        self._outboxes: list[Outbox] = []
        self._relayed_elsewhere: set[int] = set()
        self._tables: list[HasTables] = []
        self._buffer: PublishBuffer | None = None
        self._subscribers: list[Subscriber | TransactionalSubscriber] = []
        self._supervisor = Supervisor(name, fail=self._fail)
        self._failures: list[str] = []
        self._failure_listener: Callable[[str], None] | None = None
        self._running_bus: Bus | None = None
        self._stop_wanted: asyncio.Event | None = None
        self._started = asyncio.Event()
        if (made := _MADE.get()) is not None:
            made.append(self)

    def _without_handlers(self) -> Service:
        """A service with the same settings that only publishes."""
        return Service(
            self.name,
            source=self.source,
            bus=self._bus,
            catalogue=self._catalogue,
            clock=self._clock,
            provision=self._provision,
            publishing=self._publishing,
            tracing=self._tracing is not None and self._tracing.granularity,
            schemas=self._schemas,
            content_mode=self._content_mode,
        )

    # -------------------------------------------------------------------------------------------- declaring

    @overload
    def publishes(self, events: TypeForm[E], /, *, content_mode: ContentMode | None = None) -> Publisher[E]: ...
    @overload
    def publishes(
        self, events: Iterable[type[Event]], /, *, content_mode: ContentMode | None = None
    ) -> Publisher[Event]: ...
    def publishes(self, *events: Any, content_mode: ContentMode | None = None) -> Publisher[Any]:
        """Declare what this service publishes: `pub: Publisher[A | B] = svc.publishes(A | B)`.

        Args:
            events: An event class, or a union of them. A catalogue or another iterable of classes declares all of its
                events; what is published is then checked when it is published, not by type checkers.
            content_mode: `binary` or `structured` CloudEvents; else as the topic says, else as the service does.

        Raises:
            ConfigurationError: Structured mode beside `Service(schemas=...)`: a schema id tells of a record's whole
                value, and there that is not the event alone.
        """
        if len(events) != 1:
            union = " | ".join(getattr(cls, "__name__", repr(cls)) for cls in events) or "OrderPlaced | OrderPaid"
            message = f"publishes(...) takes several events as a union: publishes({union})"
            raise ConfigurationError(message)
        classes = event_classes(events[0], call="publishes(...)")

        def mode_on(topic: Topic) -> ContentMode:
            mode = checked_content_mode(content_mode or topic.content_mode or self._content_mode)
            if mode == "plain":
                topic.check_plain()
            if mode == "structured" and self._schemas is not None:
                message = (
                    f"service {self.name} puts schema ids on events, which works in binary mode only; topic "
                    f"{topic.name!r} "
                    'is to be written in structured mode: give content_mode="binary", or leave out schemas='
                )
                raise ConfigurationError(message)
            return mode

        for cls in classes:
            info = event_info(cls)
            if mode_on(info.topic) == "structured":
                self._structured.add(cls)
            if cls not in self._published:
                self._published.append(cls)
        return Publisher(
            classes,
            source=self.source,
            clock=self._clock,
            buffer=self._get_buffer,
            bus=self._get_bus,
            outbox=lambda: self._outboxes[0] if self._outboxes else None,
            tracing=self._tracing,
            content_mode=mode_on,
        )

    def _register(self, registration: Registration) -> None:
        found = registration.with_defaults(delivery=DEFAULT_DELIVERY, group=self.name, start="earliest")
        assert found.delivery is not None
        assert found.group is not None
        assert found.start is not None
        bound = found.signature.bind(self.dependency_overrides, self._threads)
        self._subscribe(
            Subscription(
                name=found.signature.name,
                events=found.events,
                group=found.group,
                delivery=found.delivery,
                start=found.start,
                handler=None if found.is_batch else bound,
                batch_handler=bound if found.is_batch else None,
                max_items=found.max_items,
                max_wait=found.max_wait,
                max_bytes=found.max_bytes,
                deadline=found.deadline,
            )
        )

    def include(
        self,
        router: Router,
        *,
        group: str | None = None,
        delivery: Promise | None = None,
        start: Start | None = None,
    ) -> None:
        """Take over the handlers and publishers of a router.

        Args:
            router: Where a module declares them.
            group: Consumer group of those handlers for which neither they nor the router name one.
            delivery: Their promise, by the same rule.
            start: Where a new group begins, by the same rule.

        Raises:
            ConfigurationError: The service runs already, or a handler does not fit.
        """
        for registration in router.registrations(group=group, delivery=delivery, start=start):
            self._register(registration)
        for publisher in router.publishers:
            publisher.bind(self)

    def _subscribe(self, subscription: Subscription) -> None:
        if self._running_bus is not None:
            message = f"{subscription.name} subscribes while {self.name} runs; subscribe before it starts"
            raise ConfigurationError(message)
        self._subscriptions.append(subscription)

    def relays(self, outbox: Outbox, *, elsewhere: bool = False) -> None:
        """Store events that are published with `tx=` in this outbox, and run its relay with the service.

        Args:
            outbox: Where they are stored.
            elsewhere: Another process runs the relay; this service only writes to the outbox.
        """
        if outbox not in self._outboxes:
            self._outboxes.append(outbox)
        if elsewhere:
            self._relayed_elsewhere.add(id(outbox))

    def prunes(self, store: Prunable, *, keep: timedelta, every: timedelta = timedelta(minutes=10)) -> None:
        """Delete what an outbox, an inbox or the like has kept for longer than this, while the service runs.

        Args:
            store: What to prune.
            keep: How long rows stay. Those of an inbox must stay longer than an event can come again: a repetition
                after that is applied again.
            every: Time between two rounds.

        Raises:
            ConfigurationError: A duration is not positive.
        """
        self._prunings.append(Pruning(store=store, keep=keep, every=every))

    def needs(self, tables: HasTables) -> None:
        """Create these tables before the first event is handled."""
        if tables not in self._tables:
            self._tables.append(tables)

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """What this service handles."""
        return tuple(self._subscriptions)

    @property
    def published(self) -> tuple[type[Event], ...]:
        """What this service publishes."""
        return tuple(self._published)

    @property
    def structured(self) -> frozenset[type[Event]]:
        """What of it is written as structured CloudEvents."""
        return frozenset(self._structured)

    @property
    def catalogue(self) -> Catalogue:
        """Every event class that this service can read."""
        own = Catalogue.of(*self._published, *(cls for s in self._subscriptions for cls in s.events))
        return own if self._catalogue is None else self._catalogue | own

    @property
    def topics(self) -> tuple[Topic, ...]:
        """The topics that this service needs: of its events, and of its dead letters."""
        found = {info.name: info for info in (event_info(cls).topic for cls in self._published)}
        for subscription in self._subscriptions:
            for cls in subscription.events:
                topic = event_info(cls).topic
                found[topic.name] = topic
                name = dead_letter_topic(topic, subscription.group)
                found[name] = Topic(
                    name,
                    partitions=topic.partitions,
                    retention=DEAD_LETTER_RETENTION,
                    # A letter is the record and the failure that is described in its headers.
                    config={"max.message.bytes": letter_limit(topic)},
                    description=f"Dead letters of {topic.name} for group {subscription.group}.",
                )
                then = getattr(subscription.delivery, "then", None)
                for delay in then.delays if isinstance(then, RetryTopics) else ():
                    name = retry_topic(topic, subscription.group, delay)
                    found[name] = Topic(
                        name,
                        partitions=topic.partitions,
                        retention=DEAD_LETTER_RETENTION,
                        config=found[dead_letter_topic(topic, subscription.group)].config,
                        description=f"Events of {topic.name} that group {subscription.group} handles again later.",
                    )
        return tuple(found[name] for name in sorted(found))

    # -------------------------------------------------------------------------------------------- running

    def _get_buffer(self) -> PublishBuffer:
        if self._buffer is None:
            message = (
                f"service {self.name} does not run, so it cannot publish; enter svc.running(bus) or its lifespan first"
            )
            raise ConfigurationError(message)
        return self._buffer

    def _get_bus(self) -> Bus:
        if self._running_bus is None:
            message = f"service {self.name} does not run"
            raise ConfigurationError(message)
        return self._running_bus

    @asynccontextmanager
    async def running(self, bus: Bus | None = None) -> AsyncIterator[Service]:
        """Run the service inside this context: started when entered, drained when left.

        Raises:
            BrokerUnreachableError: No broker answered within the bus's connect timeout.
            ConfigurationError: Subscriptions, topics or settings do not fit together.
        """
        await self.start(bus)
        try:
            yield self
        finally:
            await self.stop()

    async def start(self, bus: Bus | None = None) -> None:
        """Start; see `running`, which also stops."""
        if self._running_bus is not None:
            message = f"service {self.name} runs already"
            raise ConfigurationError(message)
        self._failure_listener = failure_listener()
        self._failures.clear()
        chosen = bus if bus is not None else self._bus
        if chosen is None:
            from hailbus.environment import bus_from_environment

            chosen = bus_from_environment()
        if chosen is None:
            message = (
                f"service {self.name} has no bus: set HAILBUS_BOOTSTRAP_SERVERS=host:9092 in the environment, or give "
                "one to Service(bus=...) or running(bus)"
            )
            raise ConfigurationError(message)
        if self._schemas is not None:
            chosen = await self._schemas.stamping(chosen, self._published, self.catalogue)
        catalogue = self.catalogue
        chosen = adopting(chosen, catalogue)
        self._check_time_limits(chosen)
        sent = self._metering.sent if self._metering is not None else None
        buffer = PublishBuffer(chosen, self._publishing, client_id=self.name, sent=sent)
        around = Surroundings(
            bus=chosen,
            catalogue=catalogue,
            settings=self._subscribing,
            clock=self._clock,
            client_id=self.name,
            failed=self._report_failure,
            tracing=self._tracing,
            schemas=self._schemas,
        )
        groups: dict[str, list[Subscription]] = {}
        for subscription in self._subscriptions:
            groups.setdefault(subscription.group, []).append(subscription)
        subscribers: list[Subscriber | TransactionalSubscriber] = []
        for group, subscriptions in groups.items():
            if not any(isinstance(s.delivery, ExactlyOnce) for s in subscriptions):
                continue
            if not all(isinstance(s.delivery, ExactlyOnce) for s in subscriptions):
                message = (
                    f"group {group!r} mixes ExactlyOnce with other promises, whose commits exclude each other; "
                    "give one of the subscriptions a group of its own"
                )
                raise ConfigurationError(message)
            subscribers.append(TransactionalSubscriber(group, subscriptions, around))
        subscribers += [
            Subscriber(group, subscriptions, around, producer=lambda: buffer.producer)
            for group, subscriptions in groups.items()
            if not isinstance(subscriptions[0].delivery, ExactlyOnce)
        ]
        if self._measures:
            for subscriber in subscribers:
                self._measure(subscriber)
        self._running_bus = chosen
        try:
            if self._provision and self.topics:
                async with ClusterAdmin(chosen, client_id=f"{self.name}-admin") as admin:
                    created = await admin.provision(self.topics)
                if created:
                    log.info("topics_created: %s", ", ".join(sorted(created)))
            await buffer.start()
            self._buffer = buffer
            for subscription in self._subscriptions:
                if isinstance(subscription.delivery, EffectivelyOnce):
                    await subscription.delivery.inbox.create_tables()
            for tables in self._tables:
                await tables.create_tables()
            for outbox in self._outboxes:
                await outbox.create_tables()
                if id(outbox) in self._relayed_elsewhere:
                    continue
                self._supervisor.run("relay", partial(outbox.relay, buffer.producer, chosen.partitioner))
            for pruning in self._prunings:
                self._supervisor.run("pruning", pruning.run)
            for subscriber in subscribers:
                self._subscribers.append(subscriber)
                await subscriber.start()
        except BaseException:
            await self.stop()
            raise
        self._started.set()
        log.info("service_started: %s on %s, groups %s", self.name, chosen.address, ", ".join(sorted(groups)) or "none")

    def _check_time_limits(self, bus: Bus) -> None:
        """Refuse time limits that would cut each other short.

        Raises:
            ConfigurationError: Which two, and what to change.
        """
        settings = self._subscribing
        rebalance = bus.rebalance_timeout
        if self._subscriptions and rebalance is not None and settings.revoke_grace >= rebalance:
            message = (
                f"revoke_grace={settings.revoke_grace.total_seconds():g} s is not shorter than the bus's rebalance "
                f"timeout of {rebalance.total_seconds():g} s: the group would continue without this member while its "
                "handlers still run; shorten the one or lengthen the other"
            )
            raise ConfigurationError(message)
        if settings.grace_period is not None and settings.drain_timeout >= settings.grace_period:
            message = (
                f"drain_timeout={settings.drain_timeout.total_seconds():g} s is not shorter than "
                f"grace_period={settings.grace_period.total_seconds():g} s: the process would be killed while it "
                "drains; shorten the one or lengthen the other"
            )
            raise ConfigurationError(message)
        for subscription in self._subscriptions:
            retry = getattr(subscription.delivery, "retry", None)
            if isinstance(retry, Backoff) and retry.longest >= settings.stall_after:
                wait_s, stall_s = retry.longest.total_seconds(), settings.stall_after.total_seconds()
                message = (
                    f"{subscription.name} waits up to {wait_s:g} s between two attempts, and the service is reported "
                    f"as stalled after {stall_s:g} s without progress; "
                    "shorten Backoff(max=...), lengthen SubscriberSettings(stall_after=...), or take RetryTopics"
                )
                raise ConfigurationError(message)

    async def started(self) -> None:
        """Wait until the service runs."""
        await self._started.wait()

    async def stop(self) -> None:
        """Drain and stop; safe to call twice."""
        self._started.clear()
        subscribers, self._subscribers = self._subscribers, []
        results = await asyncio.gather(*(subscriber.stop() for subscriber in subscribers), return_exceptions=True)
        await self._supervisor.stop()
        buffer, self._buffer = self._buffer, None
        if buffer is not None and not await buffer.stop(flush_timeout_s=FLUSH_TIMEOUT_S):
            log.warning("flush_timed_out: service %s leaves unacknowledged events behind", self.name)
        self._running_bus = None
        self._threads.stop()
        for result in results:
            if isinstance(result, Exception):
                log.error("stop_failed: service %s", self.name, exc_info=result)

    async def run(self, bus: Bus | None = None) -> None:
        """Run until SIGTERM or SIGINT, then drain and return. A second signal cancels the drain.

        Raises:
            ServiceFailedError: A part has ended and only a restart brings it back; the others were drained.
        """
        loop = asyncio.get_running_loop()
        stop_wanted = self._stop_wanted = asyncio.Event()
        failures = Failures(stop_wanted)
        task = asyncio.current_task()
        assert task is not None

        def on_signal() -> None:
            if stop_wanted.is_set():
                task.cancel()
            stop_wanted.set()

        with on_stop_signal(on_signal):
            try:
                starting = loop.create_task(self.start(bus), context=failures.context())
                stopping = loop.create_task(stop_wanted.wait())
                await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not starting.done():  # told to stop while the broker was still away
                    starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
                if not starting.cancelled() and (error := starting.exception()) is not None:
                    stopping.cancel()
                    raise error
                try:
                    await stopping
                finally:
                    await self.stop()
                if failures.reasons:
                    raise ServiceFailedError(reasons=failures.reasons)
            finally:
                self._stop_wanted = None

    async def flush(self) -> None:
        """Wait until everything that was enqueued so far is acknowledged or has failed."""
        if self._buffer is not None:
            await self._buffer.flush()

    @property
    def buffered_count(self) -> int:
        """Records accepted for publishing and not acknowledged."""
        return self._buffer.buffered_count if self._buffer is not None else 0

    @property
    def publish_stats(self) -> PublishStats:
        """Counters of publishing since the service started."""
        return self._buffer.stats if self._buffer is not None else PublishStats()

    def measure_durations(self) -> None:
        """Measure how long handlers take, from now on; the metrics of the service call it."""
        self._measures = True
        for subscriber in self._subscribers:
            self._measure(subscriber)

    def _measure(self, subscriber: Subscriber | TransactionalSubscriber) -> None:
        if subscriber.stats.durations is None:
            listener = self._metering.processed(subscriber.group) if self._metering is not None else None
            subscriber.stats.durations = Durations(listener)

    @property
    def schemas(self) -> Schemas | None:
        """What it does with a schema registry."""
        return self._schemas

    @property
    def outboxes(self) -> tuple[Outbox, ...]:
        """The outboxes whose relays run with this service."""
        return tuple(self._outboxes)

    def request_stop(self) -> None:
        """Make `run` drain and return, as a signal would."""
        if self._stop_wanted is not None:
            self._stop_wanted.set()

    # -------------------------------------------------------------------------------------------- around

    @property
    def lifespan(self) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """For `FastAPI(lifespan=svc.lifespan)`: started with the app, drained at its shutdown."""

        @asynccontextmanager
        async def lifespan(_app: Any) -> AsyncIterator[None]:  # Any: FastAPI or Starlette
            async with self.running():
                yield

        return lifespan

    def health(
        self, reasons: Callable[[], Sequence[str]] = tuple, *, failures: Callable[[], Sequence[str]] = tuple
    ) -> APIRouter:
        """Routes `/livez`, `/readyz` and `/metrics` for `app.include_router(svc.health())`; see `health_router`."""
        from hailbus.health import health_router

        self.measure_durations()  # for `/metrics`
        return health_router(self, reasons=reasons, failures=failures)

    @property
    def is_running(self) -> bool:
        """Whether start has finished and stop has not begun."""
        return self._buffer is not None

    @property
    def unhealthy_reasons(self) -> list[str]:
        """Why this service cannot do its work now; empty when it is well."""
        found = [*self._failures, *(reason for s in self._subscribers for reason in s.unhealthy_reasons)]
        since_s = self._buffer.producer.unreachable_since_s if self._buffer is not None else None
        if since_s is not None and self._running_bus is not None:
            lasted_s = asyncio.get_running_loop().time() - since_s
            if lasted_s >= self._subscribing.outage_after.total_seconds():
                found.append(
                    f"the producer has not reached the broker at {self._running_bus.address} for {lasted_s:.0f} s"
                )
        return found

    @property
    def failures(self) -> list[str]:
        """Parts of this service that have ended and only a restart brings back; empty when all of it runs."""
        groups = [f"group {s.group} reads no more: {s.failure}" for s in self._subscribers if s.failure is not None]
        return [*self._failures, *groups]

    @property
    def warnings(self) -> list[str]:
        """What a person should look at, and no restart would change: parked keys."""
        return [
            f"group {s.group} has {s.parked_keys} parked keys; `hailbus parked ls` lists them"
            for s in self._subscribers
            if s.parked_keys
        ]

    @property
    def settings(self) -> SubscriberSettings:
        """The bounds of its group members."""
        return self._subscribing

    def fail(self, reason: str) -> None:
        """Report that a part of the program has ended and only a restart brings it back.

        `/livez` answers 503 with the reason. Where `run`, `hailbus run` or `hailbus.fastapi.serve` runs the service,
        the process drains what still works and ends with exit code 1, so that its supervisor starts it again.

        Args:
            reason: A sentence for a person, such as "the writer has ended".
        """
        self._failures.append(reason)
        log.error("service_failed: %s: %s", self.name, reason)
        self._report_failure(reason)

    def _fail(self, error: BaseException) -> None:
        self.fail(f"a task of service {self.name} has died: {error!r}")

    def _report_failure(self, reason: str) -> None:
        if self._failure_listener is not None:
            self._failure_listener(reason)

    @property
    def subscribers(self) -> Sequence[Subscriber | TransactionalSubscriber]:
        """One per group, while running: counters, assignment, what waits."""
        return tuple(self._subscribers)
