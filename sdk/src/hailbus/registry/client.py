"""A client of any schema registry with Confluent's REST interface: async, with a cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

from hailbus._extras import extra

with extra("registry"):
    import httpx

from hailbus.compatibility import Level, Policy
from hailbus.errors import (
    ConfigurationError,
    IncompatibleSchemaError,
    RegistryRefusedError,
    RegistryUnreachableError,
)
from hailbus.registry.references import Reference, guid_of

__all__ = ["RegisteredSchema", "SchemaRegistry"]

log = logging.getLogger("hailbus.registry")
MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
Schema = Mapping[str, Any]  # Any: JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema that a registry has.

    Attributes:
        schema: The schema, where it is a JSON object: JSON Schema, and Avro records.
        id: Its number in this registry; 0 when it was asked for by GUID and the registry did not tell.
        guid: The same in every registry; empty when the registry gives none.
        subject, version: Where it was found, when a subject was asked.
        type: JSON, AVRO or PROTOBUF.
        references: Other schemas that it names.
        text: The schema as the registry gave it; of Protobuf the file, serialized, in base64.
    """

    schema: Schema
    id: int = 0
    guid: str = ""
    subject: str | None = None
    version: int | None = None
    type: str = "JSON"
    references: tuple[Reference, ...] = ()
    text: str = ""


class SchemaRegistry:
    """A registry, seen from a client. Schemas by id or GUID never change, so each is asked for once.

    ::

        async with SchemaRegistry("http://127.0.0.1:8081", cache=Path(".schemas")) as registry:
            registered = await registry.register("rides.v1-ride.requested.v1", schema)

    Args:
        url: Of a registry; of several on one topic joined by commas, asked one after the other until one answers.
        cache: A folder that keeps schemas: with it a process starts and runs while no registry answers.
        timeout_s: For each attempt.
        auth: User and password.
        transport: For tests: an `httpx` transport.
    """

    def __init__(
        self,
        url: str,
        *,
        cache: Path | None = None,
        timeout_s: float = 5.0,
        auth: tuple[str, str] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.urls = tuple(part.strip().rstrip("/") for part in url.split(","))
        for one in self.urls:
            if urlsplit(one).scheme not in {"http", "https"} or not urlsplit(one).netloc:
                message = f"registry URL {one!r} is not like 'http://127.0.0.1:8081'"
                raise ConfigurationError(message)
        self._cache = cache
        self._known: dict[str, RegisteredSchema] = {}
        self._client = httpx.AsyncClient(timeout=timeout_s, auth=auth, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; a later call connects again only in a new client."""
        await self._client.aclose()

    # -------------------------------------------------------------------------------------------- by id

    async def by_id(self, id: int) -> RegisteredSchema:
        """The schema with a number.

        Raises:
            RegistryRefusedError: 40403, there is none.
            RegistryUnreachableError: No registry answers, and it is not cached.
        """
        return await self._once(f"ids/{id}", f"schemas/ids/{id}", id=id)

    async def by_guid(self, guid: str) -> RegisteredSchema:
        """The schema with a GUID. Errors as for `by_id`."""
        return await self._once(f"guids/{guid}", f"schemas/guids/{guid}", guid=guid)

    def cached(self, *, id: int | None = None, guid: str | None = None) -> RegisteredSchema | None:
        """What `by_id` or `by_guid` has answered before in this process."""
        return self._known.get(f"ids/{id}" if guid is None else f"guids/{guid}")

    async def _once(self, name: str, path: str, **known: Any) -> RegisteredSchema:  # Any: id or guid
        found = self._known.get(name) or self._read(name)
        if found is None:
            found = _parsed({**await self._ask("GET", path), **known})
            if found.type == "PROTOBUF":
                found = _parsed({**await self._ask("GET", f"{path}?format=serialized"), **known})
            self._write(name, found)
        self._known[name] = found
        return found

    # -------------------------------------------------------------------------------------------- subjects

    async def register(
        self,
        subject: str,
        schema: Schema | str,
        *,
        references: Sequence[Reference] = (),
        type: str = "JSON",
    ) -> RegisteredSchema:
        """Make a schema a version of a subject, or find the version that it is already.

        Raises:
            IncompatibleSchemaError: The subject's level forbids it.
            RegistryRefusedError: It is refused for another reason.
            RegistryUnreachableError: No registry answers, and it has not been registered through this cache before.
        """
        return await self._submit(subject, schema, references, f"subjects/{_part(subject)}/versions", type)

    async def lookup(
        self,
        subject: str,
        schema: Schema | str,
        *,
        references: Sequence[Reference] = (),
        type: str = "JSON",
    ) -> RegisteredSchema:
        """The version of a subject that a schema is. Registers nothing; refused with 40401 or 40403 else."""
        return await self._submit(subject, schema, references, f"subjects/{_part(subject)}", type)

    async def _submit(
        self, subject: str, schema: Schema | str, references: Sequence[Reference], path: str, kind: str
    ) -> RegisteredSchema:
        name = f"subjects/{_part(subject)}/{guid_of(schema, references)}"
        text = schema if isinstance(schema, str) else json.dumps(schema)
        if (known := self._known.get(name)) is not None:
            return known
        try:
            answer = await self._ask("POST", path, _request(schema, references, kind), subject=subject)
        except RegistryUnreachableError:
            found = self._read(name)
            if found is None:
                raise
            log.warning("registry_unreachable: the id of %s comes from the cache", subject)
        else:
            found = _parsed({**answer, "schema": text, "schemaType": kind, "subject": subject})
            self._write(name, found)
        self._known[name] = found
        return found

    async def subjects(self) -> list[str]:
        """Names of all subjects, sorted."""
        return sorted(await self._ask("GET", "subjects"))

    async def versions(self, subject: str) -> list[int]:
        """Version numbers of a subject."""
        return list(await self._ask("GET", f"subjects/{_part(subject)}/versions"))

    async def version(self, subject: str, version: int | None = None) -> RegisteredSchema:
        """One version of a subject, the last unless one is named."""
        number = "latest" if version is None else str(version)
        return _parsed(await self._ask("GET", f"subjects/{_part(subject)}/versions/{number}"))

    async def delete(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete a subject: softly, and after that for good."""
        query = "?permanent=true" if permanent else ""
        return list(await self._ask("DELETE", f"subjects/{_part(subject)}{query}"))

    async def incompatibilities(
        self, subject: str, schema: Schema, *, version: int | None = None, references: Sequence[Reference] = ()
    ) -> list[str]:
        """Why the subject's level forbids a schema; nothing when it may be registered.

        Args:
            subject: The subject.
            schema: The schema.
            version: Compare with this version only.
            references: What it refers to.
        """
        path = f"compatibility/subjects/{_part(subject)}/versions{'' if version is None else f'/{version}'}"
        answer = await self._ask("POST", f"{path}?verbose=true", _request(schema, references), subject=subject)
        reasons = list(answer.get("messages") or ())
        return [] if answer["is_compatible"] else reasons or ["the registry gives no reason"]

    async def level(self, subject: str | None = None) -> Level:
        """The level of a subject, or of the registry."""
        path = "config" if subject is None else f"config/{_part(subject)}?defaultToGlobal=true"
        return Level((await self._ask("GET", path))["compatibilityLevel"])

    async def set_level(self, level: Level, *, subject: str | None = None, policy: Policy | None = None) -> None:
        """Set the level, and perhaps the policy, of a subject or of the registry."""
        body = {"compatibility": level.value, **({"compatibilityPolicy": policy.value} if policy else {})}
        await self._ask("PUT", "config" if subject is None else f"config/{_part(subject)}", body)

    # -------------------------------------------------------------------------------------------- inside

    async def _ask(self, method: str, path: str, body: object | None = None, *, subject: str = "") -> Any:  # Any: JSON
        """One request; the next registry is asked when one does not answer or has lost its store."""
        reason = ""
        for url in self.urls:
            try:
                response = await self._client.request(
                    method,
                    f"{url}/{path}",
                    content=None if body is None else json.dumps(body),
                    headers={"accept": f"{MEDIA_TYPE}, application/json", "content-type": MEDIA_TYPE},
                )
                answer = response.json()
            except (httpx.HTTPError, ValueError) as error:
                reason = str(error) or repr(error)
                continue
            if response.status_code < 400:
                return answer
            code = int(answer.get("error_code", response.status_code))
            text = str(answer.get("message", ""))
            if response.status_code >= 500:
                reason = f"{code}: {text}"
                continue
            if response.status_code == 409:
                raise IncompatibleSchemaError(subject=subject, code=code, url=f"{url}/{path}", text=text)
            raise RegistryRefusedError(code=code, url=f"{url}/{path}", text=text)
        raise RegistryUnreachableError(urls=self.urls, reason=reason)

    def _read(self, name: str) -> RegisteredSchema | None:
        if self._cache is None:
            return None
        try:
            return _parsed(json.loads((self._cache / f"{name}.json").read_text()))
        except (OSError, ValueError, KeyError):
            return None  # not there, or half written: then the registry is asked

    def _write(self, name: str, found: RegisteredSchema) -> None:
        if self._cache is None:
            return
        path = self._cache / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "id": found.id,
            "guid": found.guid,
            "subject": found.subject,
            "version": found.version,
            "schemaType": found.type,
            "schema": found.text,
            "references": [{"name": r.name, "subject": r.subject, "version": r.version} for r in found.references],
        }
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(document))
        fresh.replace(path)


def _request(schema: Schema | str, references: Sequence[Reference], kind: str = "JSON") -> dict[str, Any]:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    body: dict[str, Any] = {"schema": text, "schemaType": kind}
    if references:
        body["references"] = [{"name": r.name, "subject": r.subject, "version": r.version} for r in references]
    return body


def _parsed(answer: Mapping[str, Any]) -> RegisteredSchema:
    kind = answer.get("schemaType") or "AVRO"
    schema = json.loads(answer["schema"]) if kind in {"JSON", "AVRO"} else {}
    return RegisteredSchema(
        schema=schema if isinstance(schema, dict) else {},
        id=int(answer.get("id") or 0),
        guid=answer.get("guid") or "",
        subject=answer.get("subject"),
        version=answer.get("version"),
        type=kind,
        text=answer["schema"],
        references=tuple(Reference(r["name"], r["subject"], int(r["version"])) for r in answer.get("references") or ()),
    )


def _part(text: str) -> str:
    return quote(text, safe="")
