"""The registry's REST interface: the paths, media types and error codes that Confluent's clients know."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from hailbus._transport import Bus
from hailbus.compatibility import Level, Policy
from hailbus.registry import Reference
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

from hailbus_registry.log import SCHEMAS_TOPIC, SchemaLog
from hailbus_registry.state import RefusedError, RegistryState, StoredSchema, Submission

__all__ = ["MEDIA_TYPE", "create_app"]

MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
AnswerT = TypeVar("AnswerT")

Flag = Annotated[bool, Query()]
Subject = Annotated[str, Path()]


class _Reference(BaseModel):
    name: str
    subject: str
    version: int = Field(ge=1)


class _SchemaBody(BaseModel):
    """What `POST` of a schema takes; whatever else is sent and says something is refused."""

    model_config = ConfigDict(extra="allow")

    schema_text: str = Field(alias="schema")
    schemaType: str = "AVRO"
    references: list[_Reference] | None = None
    id: int | None = None
    version: int | None = None

    def submission(self) -> Submission:
        """As the state takes it."""
        more = sorted(name for name, value in (self.model_extra or {}).items() if value and name != "guid")
        if more:
            raise RefusedError(42201, f"Invalid schema: this registry knows no {', '.join(more)}; leave that out")
        references = tuple(Reference(r.name, r.subject, r.version) for r in self.references or ())
        return Submission(text=self.schema_text, references=references, type=self.schemaType)


def _answer(content: object, *, status: int = 200) -> Response:
    return Response(json.dumps(content, ensure_ascii=False), status_code=status, media_type=MEDIA_TYPE)


def _refusal(code: int, message: str, status: int | None = None) -> Response:
    return _answer({"error_code": code, "message": message}, status=status or int(str(code)[:3]))


async def _body(request: Request) -> Any:  # Any: JSON
    try:
        found = json.loads(await request.body())
    except ValueError as error:
        raise RefusedError(42201, f"The request's body is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise RefusedError(42201, "The request's body is no JSON object")
    return found


async def _schema_body(request: Request) -> _SchemaBody:
    try:
        return _SchemaBody.model_validate(await _body(request))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RefusedError(42201, f"Invalid schema: {place}: {first['msg']}") from error


def _shown(stored: StoredSchema) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": stored.text, "schemaType": stored.type, "guid": stored.guid}
    if stored.references:
        document["references"] = [
            {"name": r.name, "subject": r.subject, "version": r.version} for r in stored.references
        ]
    return document


def _placed(stored: StoredSchema) -> dict[str, Any]:
    return {"subject": stored.subject, "version": stored.version, "id": stored.id, **_shown(stored)}


def _page(items: list[Any], offset: int, limit: int) -> Response:
    return _answer(items[offset:] if limit < 0 else items[offset : offset + limit])


def create_app(
    bus: Bus,
    *,
    level: Level = Level.BACKWARD,
    policy: Policy = Policy.STRICT,
    topic: str = SCHEMAS_TOPIC,
    timeout_s: float = 30.0,
) -> FastAPI:
    """A registry over a cluster. Any number of them may run on one topic; each answers alike.

    Args:
        bus: The cluster.
        level: Where neither the registry nor the subject is configured.
        policy: The same, about fields that open models do not name.
        topic: Where everything is kept.
        timeout_s: How long the cluster may take to accept a change.
    """
    schemas = SchemaLog(bus, RegistryState(level=level, policy=policy), topic=topic, timeout_s=timeout_s)
    state = schemas.state

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await schemas.start()
        try:
            yield
        finally:
            await schemas.stop()

    app = FastAPI(title="hailbus schema registry", lifespan=lifespan, openapi_url=None)

    async def found(look: Callable[[], AnswerT]) -> AnswerT:
        """What is not here may have been written by another server a moment ago: look again at the topic's end."""
        try:
            return look()
        except RefusedError as refused:
            if refused.code // 100 != 404:
                raise
            await schemas.catch_up()
            return look()

    @app.exception_handler(RefusedError)
    async def refused(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        return _refusal(error.code, error.message)

    @app.exception_handler(RequestValidationError)
    async def malformed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        return _refusal(422, f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}")

    @app.exception_handler(HTTPException)
    async def no_route(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _refusal(error.status_code, f"HTTP {error.status_code} {error.detail}", error.status_code)

    # -------------------------------------------------------------------------------------------- around

    @app.get("/")
    async def root() -> Response:
        return _answer({})

    @app.get("/livez")
    @app.get("/readyz")
    async def ready() -> Response:
        await schemas.catch_up()
        return _answer({})

    @app.get("/contexts")
    async def contexts() -> Response:
        return _answer(["."])

    @app.get("/schemas/types")
    async def types() -> Response:
        return _answer(["JSON", "AVRO", "PROTOBUF"])

    @app.get("/v1/metadata/id")
    async def cluster() -> Response:
        return _answer({"scope": {"path": [], "clusters": {"schema-registry-cluster": topic}}})

    # -------------------------------------------------------------------------------------------- schemas by id

    @app.get("/schemas/ids/{id}")
    async def schema_by_id(id: int) -> Response:
        return _answer(_shown(await found(lambda: state.by_id(id))))

    @app.get("/schemas/ids/{id}/schema")
    async def text_by_id(id: int) -> Response:
        return Response((await found(lambda: state.by_id(id))).text, media_type=MEDIA_TYPE)

    @app.get("/schemas/ids/{id}/subjects")
    async def subjects_by_id(id: int, deleted: Flag = False, subject: str = "") -> Response:
        places = await found(lambda: state.places(id, deleted=deleted))
        return _answer(sorted({name for name, _ in places if subject in {"", name}}))

    @app.get("/schemas/ids/{id}/versions")
    async def versions_by_id(id: int, deleted: Flag = False, subject: str = "") -> Response:
        places = await found(lambda: state.places(id, deleted=deleted))
        return _answer([{"subject": n, "version": v} for n, v in places if subject in {"", n}])

    @app.get("/schemas/guids/{guid}")
    async def schema_by_guid(guid: str) -> Response:
        return _answer(_shown(await found(lambda: state.by_guid(guid))))

    @app.get("/schemas/guids/{guid}/ids")
    async def ids_by_guid(guid: str) -> Response:
        stored = await found(lambda: state.by_guid(guid))
        return _answer([{"context": ".", "id": stored.id}])

    @app.get("/schemas")
    async def schemas_all(
        subjectPrefix: str = "",
        deleted: Flag = False,
        latestOnly: Flag = False,
        offset: int = 0,
        limit: int = -1,
    ) -> Response:
        every: list[dict[str, Any]] = []
        for name in state.subjects(prefix=_prefix(subjectPrefix), deleted=deleted):
            versions = state.versions(name, deleted=deleted)
            every += [_placed(stored) for stored in (versions[-1:] if latestOnly else versions)]
        return _page(every, offset, limit)

    # -------------------------------------------------------------------------------------------- subjects

    @app.get("/subjects")
    async def subjects(
        subjectPrefix: str = "",
        deleted: Flag = False,
        deletedOnly: Flag = False,
        deleted_only: Flag = False,
        offset: int = 0,
        limit: int = -1,
    ) -> Response:
        await schemas.catch_up()
        only = deletedOnly or deleted_only
        names = state.subjects(prefix=_prefix(subjectPrefix), deleted=deleted, deleted_only=only)
        return _page(names, offset, limit)

    @app.get("/subjects/{subject:path}/versions")
    async def versions(
        subject: Subject,
        deleted: Flag = False,
        deletedOnly: Flag = False,
        deleted_only: Flag = False,
        offset: int = 0,
        limit: int = -1,
    ) -> Response:
        only = deletedOnly or deleted_only
        every = await found(lambda: state.versions(subject, deleted=deleted, deleted_only=only))
        return _page([stored.version for stored in every], offset, limit)

    @app.post("/subjects/{subject:path}/versions")
    async def register(subject: Subject, request: Request) -> Response:
        body = await _schema_body(request)
        submission = body.submission()
        stored = await schemas.write(lambda s: s.register(subject, submission, id=body.id, version=body.version))
        return _answer({"id": stored.id, "version": stored.version, **_shown(stored)})

    @app.get("/subjects/{subject:path}/versions/{version}/schema")
    async def text_of_version(subject: Subject, version: str, deleted: Flag = False) -> Response:
        stored = await found(lambda: state.version(subject, version, deleted=deleted))
        return Response(stored.text, media_type=MEDIA_TYPE)

    @app.get("/subjects/{subject:path}/versions/{version}/referencedby")
    async def referenced_by(subject: Subject, version: str, offset: int = 0, limit: int = -1) -> Response:
        stored = await found(lambda: state.version(subject, version))
        return _page(state.referrers(subject, stored.version), offset, limit)

    @app.get("/subjects/{subject:path}/versions/{version}")
    async def one_version(subject: Subject, version: str, deleted: Flag = False) -> Response:
        return _answer(_placed(await found(lambda: state.version(subject, version, deleted=deleted))))

    @app.delete("/subjects/{subject:path}/versions/{version}")
    async def delete_version(subject: Subject, version: str, permanent: Flag = False) -> Response:
        return _answer(await schemas.write(lambda s: s.delete_version(subject, version, permanent=permanent)))

    @app.post("/subjects/{subject:path}")
    async def lookup(subject: Subject, request: Request, deleted: Flag = False) -> Response:
        submission = (await _schema_body(request)).submission()
        return _answer(_placed(await found(lambda: state.lookup(subject, submission, deleted=deleted))))

    @app.delete("/subjects/{subject:path}")
    async def delete_subject(subject: Subject, permanent: Flag = False) -> Response:
        return _answer(await schemas.write(lambda s: s.delete_subject(subject, permanent=permanent)))

    # -------------------------------------------------------------------------------------------- compatibility

    def verdict(reasons: list[str], *, verbose: bool) -> Response:
        return _answer({"is_compatible": not reasons, **({"messages": reasons} if verbose else {})})

    @app.post("/compatibility/subjects/{subject:path}/versions")
    async def compatible(subject: Subject, request: Request, verbose: Flag = False) -> Response:
        submission = (await _schema_body(request)).submission()
        await schemas.catch_up()
        try:
            history = state.versions(subject)
        except RefusedError:
            history = []
        return verdict(state.incompatibilities(subject, submission, history), verbose=verbose)

    @app.post("/compatibility/subjects/{subject:path}/versions/{version}")
    async def compatible_with(subject: Subject, version: str, request: Request, verbose: Flag = False) -> Response:
        submission = (await _schema_body(request)).submission()
        stored = await found(lambda: state.version(subject, version))
        return verdict(state.incompatibilities(subject, submission, [stored]), verbose=verbose)

    # -------------------------------------------------------------------------------------------- config and mode

    def configuration(path: str, subject_of: Callable[[str], str | None]) -> None:
        @app.get(path)
        async def config(request: Request, defaultToGlobal: Flag = False) -> Response:
            subject = subject_of(request.path_params.get("subject", ""))
            return _answer(await found(lambda: state.config(subject, default_to_global=defaultToGlobal)))

        @app.put(path)
        async def set_config(request: Request) -> Response:
            subject, changes = subject_of(request.path_params.get("subject", "")), await _body(request)
            return _answer(await schemas.write(lambda s: s.set_config(subject, changes)))

        @app.delete(path)
        async def delete_config(request: Request) -> Response:
            subject = subject_of(request.path_params.get("subject", ""))
            return _answer(await schemas.write(lambda s: s.delete_config(subject)))

    def writing_mode(path: str, subject_of: Callable[[str], str | None]) -> None:
        @app.get(path)
        async def mode(request: Request, defaultToGlobal: Flag = False) -> Response:
            subject = subject_of(request.path_params.get("subject", ""))
            return _answer({"mode": await found(lambda: state.mode(subject, default_to_global=defaultToGlobal))})

        @app.put(path)
        async def set_mode(request: Request, force: Flag = False) -> Response:
            subject = subject_of(request.path_params.get("subject", ""))
            wanted = str((await _body(request)).get("mode", ""))
            return _answer({"mode": await schemas.write(lambda s: s.set_mode(subject, wanted, force=force))})

        @app.delete(path)
        async def delete_mode(request: Request) -> Response:
            subject = subject_of(request.path_params.get("subject", ""))
            return _answer({"mode": await schemas.write(lambda s: s.delete_mode(subject))})

    for add, name in ((configuration, "/config"), (writing_mode, "/mode")):
        add(name, lambda _: None)
        add(name + "/{subject:path}", lambda subject: subject)
    return app


def _prefix(text: str) -> str:
    """Clients say `:*:` for every context; there is one."""
    return "" if text == ":*:" else text
