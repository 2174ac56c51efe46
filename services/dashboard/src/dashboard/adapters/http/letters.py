"""The dead letters over HTTP: what waits, what is wrong with it, and its replay with a corrected value."""

import secrets
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from hailbus.dead_letter import original_headers
from hailbus.dead_letter_queue import Letter
from hailbus.fastapi import ProblemError
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json
from ride_events import CATALOGUE

from dashboard.adapters.http.own_page import NOT_OWN_PAGE, is_from_own_page
from dashboard.adapters.letters import Letters, Queue
from dashboard.adapters.watch import Watch
from dashboard.domain.letters import Problem, Written, compact, problems_of, twin_of

Json = dict[str, Any]  # Any: JSON
Mode = Literal["read", "replay"]
_SHOWN_CHARACTERS = 300
"""Of an error's message, in the list."""
_SHOWN_BYTES = 16
"""Of a value that is no text."""
NOT_JUDGED = (
    "No known event class describes this record, so an edited value cannot be checked. Replay it as it is, or use "
    "`hailbus dlq edit`."
)


class LetterRefusedError(Exception):
    """A value must not be replayed."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        first = problems[0]
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        super().__init__(f"{first.field}: {first.words}{more}" if first.field else f"{first.words}{more}")
        self.problem_members = {"problems": _problems_view(problems)}


Text = Annotated[str, Field(description="The value as text, JSON for the events of the example.")]


class Checked(BaseModel):
    """A value to check."""

    model_config = ConfigDict(extra="forbid")

    value: Text


class Replayed(BaseModel):
    """A letter to replay: with a corrected value, or without one as it is."""

    model_config = ConfigDict(extra="forbid")

    value: Text | None = None


def letters_router(letters: Letters, watch: Watch, mode: Mode) -> APIRouter:
    """Return the routes.

    Args:
        letters: The dead letters.
        watch: Keeps the timelines in which a letter's twin is looked for.
        mode: Whether letters can be replayed and dropped.
    """
    router = APIRouter(prefix="/api/letters", tags=["letters"])
    listed = _Listed(letters, mode)

    def only_own_page(request: Request) -> None:
        if mode == "read":
            raise ProblemError("letters-read-only", "this dashboard shows dead letters; it does not deal with them")
        if not is_from_own_page(request.headers):
            raise ProblemError("not-own-page", NOT_OWN_PAGE)

    own_page = [Depends(only_own_page)]

    @router.get("", summary="All dead letters by queue, the newest first")
    async def all_letters(request: Request) -> Response:
        tag, body = listed.now()
        headers = {"ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type="application/json", headers=headers)

    @router.get("/waiting", summary="How many letters wait")
    async def waiting() -> Json:
        return {"waiting": letters.waiting}

    @router.get("/{queue}/{place}", summary="One letter with its value, and what is wrong with it")
    async def one(queue: str, place: str) -> Json:
        return _whole_view(queue, letters.find(queue, place), watch)

    @router.post(
        "/{queue}/{place}/check", summary="What is wrong with a value; it is not stored", dependencies=own_page
    )
    async def check(queue: str, place: str, body: Checked) -> Json:
        return {"problems": _problems_view(_problems(letters.find(queue, place), body.value))}

    @router.post("/{queue}/{place}/replay", summary="Publish the record again", dependencies=own_page)
    async def replay(queue: str, place: str, body: Replayed) -> Json:
        letter = letters.waiting_letter(queue, place)
        problems = _problems(letter, body.value)
        if problems:
            raise LetterRefusedError(problems)
        # The value that was judged: meanwhile somebody else may have edited the letter.
        value = letter.value if _is_as_it_is(letter, body.value) else compact(body.value or "").encode()
        return _whole_view(queue, await letters.replay(queue, place, value), watch)

    @router.post("/{queue}/{place}/drop", summary="Deal with a letter without a replay", dependencies=own_page)
    async def drop(queue: str, place: str) -> Json:
        return _whole_view(queue, await letters.drop(queue, place), watch)

    return router


class _Listed:
    """The list of all letters as JSON, made once for each change."""

    def __init__(self, letters: Letters, mode: Mode) -> None:
        self._letters = letters
        self._mode = mode
        # A restart counts from 0 again, so its tags must differ from those of the process before.
        self._start = secrets.token_hex(4)
        self._made: tuple[int, bytes] | None = None

    def now(self) -> tuple[str, bytes]:
        """Return an entity tag and the list."""
        version = self._letters.version
        if self._made is None or self._made[0] != version:
            self._made = version, to_json(self._view())
        return f'"{self._start}-{version}"', self._made[1]

    def _view(self) -> Json:
        return {
            "mode": self._mode,
            "is_read": self._letters.is_read,
            "error": self._letters.error,
            "waiting": self._letters.waiting,
            "queues": [_queue_view(queue) for _, queue in sorted(self._letters.queues.items())],
        }


def _is_as_it_is(letter: Letter, text: str | None) -> bool:
    return text is None or text.encode() == letter.value


def _written(letter: Letter, value: bytes | None) -> Written:
    return Written(
        topic=letter.origin_topic,
        key=letter.record.key,
        value=value,
        headers=original_headers(letter.record.headers),
    )


def _problems(letter: Letter, text: str | None) -> tuple[Problem, ...]:
    """Return what is wrong with a letter's own value, or with a text in its place."""
    value = letter.value if text is None else text.encode()
    if value is None and letter.is_incomplete:
        words = f"The value was too large for the letter; the record is at {_origin(letter)}, while its topic keeps it."
        return (Problem(field="", words=words),)
    problems = problems_of(_written(letter, value), CATALOGUE)
    if problems is None:
        return () if _is_as_it_is(letter, text) else (Problem(field="", words=NOT_JUDGED),)
    return problems


def _problems_view(problems: tuple[Problem, ...]) -> list[Json]:
    return [{"field": problem.field, "words": problem.words} for problem in problems]


def _origin(letter: Letter) -> str:
    return f"{letter.origin_topic}-{letter.origin_partition}@{letter.origin_offset}"


def _queue_view(queue: Queue) -> Json:
    return {
        "name": queue.name,
        "topic": queue.topic,
        "group": queue.group,
        "waiting": queue.waiting,
        "all": queue.total,
        "more": queue.more,
        "letters": [_short_view(letter) for letter in queue.letters],
    }


def _short_view(letter: Letter) -> Json:
    facts = letter.facts
    attempts = facts.get("hailbus-attempt", "")
    message = facts.get("exception-message", "")
    return {
        "place": letter.place,
        "status": letter.status,
        "waits": letter.waits,
        "origin": {
            "topic": letter.origin_topic,
            "partition": letter.origin_partition,
            "offset": letter.origin_offset,
        },
        "type": facts.get("ce_type") or None,
        "id": facts.get("ce_id") or None,
        "key": None if letter.record.key is None else letter.record.key.decode(errors="replace"),
        "group": facts.get("original-consumer-group") or None,
        "by": facts.get("hailbus-failed-by") or None,
        "error": {
            "class": facts.get("exception-fqcn") or None,
            "message": message if len(message) <= _SHOWN_CHARACTERS else f"{message[:_SHOWN_CHARACTERS]}…",
        },
        "failed_at": facts.get("hailbus-first-failed-at") or None,
        "attempts": int(attempts) if attempts.isdecimal() and len(attempts) < 10 else None,
        "history": [dict(entry) for entry in letter.history],
    }


def _whole_view(queue: str, letter: Letter, watch: Watch) -> Json:
    found = _short_view(letter)
    found["error"]["message"] = letter.facts.get("exception-message", "")
    key = letter.record.key
    text, note = _text(letter, letter.value)
    original, _ = _text(letter, letter.record.value)
    twin = None
    written = _written(letter, letter.value)
    if letter.waits and key is not None:
        place = letter.origin_topic, letter.origin_partition, letter.origin_offset
        twin = twin_of(written, place, watch.city.timelines.get(key.decode(errors="replace")), CATALOGUE)
    return found | {
        "queue": queue,
        "value": text,
        "value_note": note,
        "original": original,
        "described": problems_of(written, CATALOGUE) is not None,
        "problems": _problems_view(_problems(letter, None)),
        "headers": [[name, (value or b"").decode(errors="replace")] for name, value in letter.record.headers],
        "twin": None
        if twin is None
        else {
            "topic": twin.topic,
            "partition": twin.partition,
            "offset": twin.offset,
            "value": (twin.value or b"").decode(),
        },
    }


def _text(letter: Letter, value: bytes | None) -> tuple[str | None, str]:
    """Return a value as text, or why there is none."""
    if value is None:
        left_out = f"The value was too large for the letter; the record is at {_origin(letter)}."
        return None, left_out if letter.is_incomplete else "The record has no value."
    try:
        return value.decode(), ""
    except UnicodeDecodeError:
        shown = value[:_SHOWN_BYTES].hex(" ")
        dots = " …" if len(value) > _SHOWN_BYTES else ""
        return None, f"The value is not UTF-8 text. It has {len(value)} bytes: {shown}{dots}"


__all__ = ["LetterRefusedError", "letters_router"]
