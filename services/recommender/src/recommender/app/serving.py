"""Answer requests, keep what was served, and take what was chosen."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol
from uuid import NAMESPACE_URL, UUID, uuid4, uuid5

from recommender.app.city import City, Option, Request

_BATCH: Final = 256
_WAITING: Final = 4096
_NAMESPACE: Final = uuid5(NAMESPACE_URL, "hailbus:recommender")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An answer that was given."""

    recommendation_id: str
    request: Request
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What is known of an answer later on. `options` are pairs of id and rank."""

    recommendation_id: str
    rider_id: str
    served_at: datetime
    options: tuple[tuple[str, int], ...]
    chosen_option_id: str | None
    simulated: bool


class UnavailableError(Exception):
    """Database or bus do not answer now: the same request may work later."""


class UnknownRecommendationError(Exception):
    """No recommendation has this id, or it is too old to be kept."""


class UnknownOptionError(Exception):
    """The recommendation has no option with this id."""


class OtherOptionChosenError(Exception):
    """Another option of the recommendation was chosen before."""


class ServedStore(Protocol):
    """Keeps answers."""

    async def keep(self, served: Sequence[Served]) -> Sequence[Served]:
        """Store answers; return those that hold, in the same order: one whose id is there already stays as it was."""
        ...

    async def find(self, recommendation_id: str) -> Stored | None:
        """Return an answer that was kept."""
        ...

    async def answer(self, recommendation_id: str) -> Served | None:
        """Return an answer that was kept, whole."""
        ...

    async def choose(self, recommendation_id: str, option_id: str) -> str:
        """Note the choice unless there is one; return the one that holds."""
        ...


class Announcer(Protocol):
    """Tells the others; returns when the bus has it."""

    async def served(self, served: Sequence[Served]) -> None:
        """Publish `recommendation.served` for each."""
        ...

    async def chosen(self, stored: Stored, option_id: str, rank: int, ride_id: str | None, at: datetime) -> None:
        """Publish `recommendation.chosen`."""
        ...


class Serving:
    """Answers requests. What is served is stored and published before the client gets it.

    Answers that wait while a transaction runs share the next one (at most 256), so a commit is paid once for many. At
    most 4,096 wait; more are refused as unavailable.
    """

    def __init__(self, city: City, store: ServedStore, announcer: Announcer) -> None:
        self._city = city
        self._store = store
        self._announcer = announcer
        self._waiting: asyncio.Queue[tuple[Served, asyncio.Future[Served]]] = asyncio.Queue(_WAITING)
        self._worker: asyncio.Task[None] | None = None
        self.served = 0

    async def start(self) -> None:
        """Begin to store and publish."""
        self._worker = asyncio.create_task(self._work(), name="serving")

    async def stop(self) -> None:
        """Finish what waits, then end."""
        if self._worker is not None:
            await self._waiting.join()
            self._worker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._worker

    async def recommend(self, request: Request, *, key: str | None = None) -> Served:
        """Return an answer that is stored and published.

        Args:
            request: Who, when, from where.
            key: Repeating a request with the same key gives the same answer, also after a crash.

        Raises:
            UnavailableError: Store or bus fail, or too many wait.
        """
        if key is None:
            recommendation_id = str(uuid4())
        else:
            recommendation_id = str(uuid5(_NAMESPACE, f"{request.rider_id}\n{key}"))
            known = await self._store.answer(recommendation_id)
            if known is not None:
                await self._announcer.served([known])  # it may have died before: the event id is the same
                return known
        served = Served(recommendation_id=recommendation_id, request=request, options=self._city.recommend(request))
        done: asyncio.Future[Served] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((served, done))
        except asyncio.QueueFull:
            raise UnavailableError("too many requests wait") from None
        return await done  # of two requests with one key that come at once, the first that was stored

    async def choose(
        self, recommendation_id: str, option_id: str, *, ride_id: str | None, at: datetime | None
    ) -> Stored:
        """Take the rider's choice; the same choice again is fine. `at` is the served time unless given.

        Raises:
            UnknownRecommendationError, UnknownOptionError, OtherOptionChosenError, UnavailableError
        """
        stored = await self._store.find(recommendation_id)
        if stored is None:
            raise UnknownRecommendationError(f"there is no recommendation {recommendation_id}")
        rank = dict(stored.options).get(option_id)
        if rank is None:
            raise UnknownOptionError(f"the recommendation has no option {option_id!r}")
        holding = await self._store.choose(recommendation_id, option_id)
        if holding != option_id:
            raise OtherOptionChosenError(f"{holding!r} of this recommendation was chosen before")
        await self._announcer.chosen(stored, option_id, rank, ride_id, at if at is not None else stored.served_at)
        return stored

    async def _work(self) -> None:
        while True:
            batch = [await self._waiting.get()]
            while len(batch) < _BATCH and not self._waiting.empty():
                batch.append(self._waiting.get_nowait())
            try:
                answers = await self._store.keep([served for served, _ in batch])
                await self._announcer.served(answers)
            except UnavailableError as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(UnavailableError(str(error)))
            else:
                self.served += len(batch)
                for (_, done), answer in zip(batch, answers, strict=True):
                    if not done.done():
                        done.set_result(answer)
            finally:
                for _ in batch:
                    self._waiting.task_done()


def event_id(recommendation_id: str, event_type: str) -> str:
    """Return the id of a recommendation's event: the same each time, so that a repetition is recognised."""
    return str(uuid5(_NAMESPACE, f"{UUID(recommendation_id)}\n{event_type}"))


__all__ = [
    "Announcer",
    "OtherOptionChosenError",
    "Served",
    "ServedStore",
    "Serving",
    "Stored",
    "UnavailableError",
    "UnknownOptionError",
    "UnknownRecommendationError",
    "event_id",
]
