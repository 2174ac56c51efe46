"""A page for dead letters: list, show, edit, replay, drop. Plain HTML without scripts; works offline.

::

    app.include_router(dead_letter_router(bus), prefix="/dead-letters", dependencies=[Depends(only_operators)])

Everyone who can open this page can replay and drop letters: put it behind your own login. Forms are accepted from the
page itself only.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from hailbus._transport import Bus
from hailbus.admin import ClusterAdmin
from hailbus.dead_letter_queue import DeadLetterQueue, Letter
from hailbus.errors import ConfigurationError

__all__ = ["dead_letter_router"]

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .35rem .7rem; vertical-align: top }
tr + tr { border-top: 1px solid #d0d7de } textarea { width: 100%; font: 13px/1.4 ui-monospace, monospace }
.status { font-weight: 600 } nav { margin-bottom: 1rem } form { display: inline } .wrong { color: #b42318 }
"""
MAX_VALUE_BYTES = 16 * 1024 * 1024
Who = Callable[[Request], str]


def _by_address(request: Request) -> str:
    return f"page from {request.client.host}" if request.client is not None else "page"


def dead_letter_router(bus: Bus, *, who: Who = _by_address) -> APIRouter:
    """Routes of the page.

    Args:
        bus: The cluster whose topics ending in `-dlt` are shown.
        who: Name of the person behind a request, for the audit record.
    """
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def queues(request: Request) -> HTMLResponse:
        async with ClusterAdmin(bus) as admin:
            names = sorted(name for name in await admin.topics() if name.endswith("-dlt"))
        rows = []
        for name in names:
            letters = await DeadLetterQueue(bus, name).letters()
            waiting = sum(letter.waits for letter in letters)
            rows.append([_link(f"{_base(request)}/{quote(name)}", name), str(waiting), str(len(letters))])
        body = _table(["Queue", "Waiting", "All"], rows) if rows else "<p>There are no dead letter topics.</p>"
        return _page("Dead letters", body)

    @router.get("/{queue}")
    async def letters(request: Request, queue: str, *, everything: bool = False) -> HTMLResponse:
        found = await DeadLetterQueue(bus, await _existing(bus, queue)).letters()
        here = f"{_base(request)}/{quote(queue)}"
        rows = [
            [
                _link(f"{here}/{letter.place}", letter.place),
                f'<span class="status">{letter.status}</span>',
                _text(letter.facts.get("ce_type", "?")),
                _text(letter.facts.get("hailbus-attempt", "?")),
                _text(letter.facts.get("exception-message", "")[:200]),
            ]
            for letter in found
            if everything or letter.waits
        ]
        table = _table(["Place", "Status", "Type", "Attempts", "Reason"], rows) if rows else "<p>Nothing waits.</p>"
        other = _link(here, "those that wait") if everything else _link(f"{here}?everything=true", "all of them")
        replay = _form(f"{here}/replay", "Replay all that wait") if any(letter.waits for letter in found) else ""
        return _page(queue, f"<p>Show {other}. {replay}</p>{table}", up=_base(request))

    @router.post("/{queue}/replay")
    async def replay_all(request: Request, queue: str) -> Response:
        _check_origin(request)
        await DeadLetterQueue(bus, await _existing(bus, queue), by=who(request)).replay()
        return RedirectResponse(f"{_base(request)}/{quote(queue)}", status_code=303)

    @router.get("/{queue}/{place}")
    async def letter(request: Request, queue: str, place: str) -> HTMLResponse:
        found = await _letter(DeadLetterQueue(bus, await _existing(bus, queue)), place)
        return _show(request, queue, found)

    @router.post("/{queue}/{place}/{action}")
    async def act(request: Request, queue: str, place: str, action: str) -> Response:
        _check_origin(request)
        letters = DeadLetterQueue(bus, await _existing(bus, queue), by=who(request))
        found = await _letter(letters, place)
        match action:
            case "replay":
                await letters.replay([place])
            case "drop":
                await letters.drop([place])
            case "edit":
                body = await request.body()
                if len(body) > MAX_VALUE_BYTES:
                    raise HTTPException(413, f"a value may have {MAX_VALUE_BYTES} bytes")
                text = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=10).get("value", [""])[0]
                try:
                    value = json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")).encode()
                    await letters.edit(place, value)
                except ValueError as error:
                    return _show(request, queue, found, text=text, wrong=f"This is no JSON: {error}")
                except ConfigurationError as error:
                    return _show(request, queue, found, text=text, wrong=str(error))
            case _:
                raise HTTPException(404, f"there is no action {action!r}; there are edit, replay and drop")
        return RedirectResponse(f"{_base(request)}/{quote(queue)}/{place}", status_code=303)

    return router


def _base(request: Request) -> str:
    """The path that the router is mounted at: the part before the one that this route has matched."""
    queue = request.path_params.get("queue")
    path = request.url.path
    return path.rstrip("/") if queue is None else path[: path.index(f"/{quote(queue)}")]


def _check_origin(request: Request) -> None:
    """A browser says where a form came from; another site must not press our buttons."""
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in {"same-origin", "none"}:
        raise HTTPException(403, "this form was sent from another site")


async def _existing(bus: Bus, queue: str) -> str:
    async with ClusterAdmin(bus) as admin:
        if queue.endswith("-dlt") and queue in await admin.topics():
            return queue
    raise HTTPException(404, f"there is no dead letter topic {queue!r}")


async def _letter(letters: DeadLetterQueue, place: str) -> Letter:
    try:
        return await letters.letter(place)
    except ConfigurationError as error:
        raise HTTPException(404, str(error)) from error


def _show(
    request: Request, queue: str, letter: Letter, *, text: str | None = None, wrong: str | None = None
) -> HTMLResponse:
    here = f"{_base(request)}/{quote(queue)}/{letter.place}"
    if text is None:
        raw = (letter.value or b"").decode("utf-8", "backslashreplace")
        try:
            text = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
        except ValueError:
            text = raw
    facts = _table(["Name", "Value"], [[_text(name), _text(value)] for name, value in letter.facts.items()])
    history = [[_text(entry.get(name, "")) for name in ("at", "by", "action", "to")] for entry in letter.history]
    parts = [f'<p>Status: <span class="status">{letter.status}</span></p>']
    if wrong is not None:
        parts.append(f'<p class="wrong" role="alert">{_text(wrong)}</p>')
    if letter.waits:
        parts.append(
            f'<form method="post" action="{_text(here)}/edit"><label for="value">Value</label>'
            f'<textarea id="value" name="value" rows="14">{_text(text)}</textarea><button>Save</button></form> '
        )
        parts += [_form(f"{here}/replay", "Replay"), " ", _form(f"{here}/drop", "Drop")]
    else:
        parts.append(f"<pre>{_text(text)}</pre>")
    if history:
        parts.append("<h2>History</h2>" + _table(["At", "By", "Action", "To"], history))
    parts.append("<h2>Event and failure</h2>" + facts)
    up = f"{_base(request)}/{quote(queue)}"
    return _page(f"{queue} {letter.place}", "".join(parts), up=up, status_code=422 if wrong else 200)


def _text(text: str) -> str:
    return html.escape(text)


def _link(target: str, text: str) -> str:
    return f'<a href="{_text(target)}">{_text(text)}</a>'


def _form(target: str, label: str) -> str:
    return f'<form method="post" action="{_text(target)}"><button>{_text(label)}</button></form>'


def _table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _page(title: str, body: str, *, up: str | None = None, status_code: int = 200) -> HTMLResponse:
    nav = f"<nav>{_link(up or '/', 'up')}</nav>" if up is not None else ""
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{_text(title)}</title><style>{STYLE}</style>'
        f"<body>{nav}<h1>{_text(title)}</h1>{body}</body></html>",
        status_code=status_code,
        headers={
            "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'",
            "cache-control": "no-store",
        },
    )
