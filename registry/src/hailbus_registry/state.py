"""What a schema registry knows, and what it decides. No I/O: records come in by `replay`, decisions come out.

Records are Confluent's, so that either registry can take over the other's topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, TypeVar
from uuid import UUID

from hailbus.compatibility import Difference, Level, Policy, breaks, bundled
from hailbus.registry.references import Reference, guid_of
from jsonschema.exceptions import SchemaError
from jsonschema.validators import validator_for

from hailbus_registry.formats import avro_document, format_breaks, protobuf_document

__all__ = ["Decision", "Mode", "RefusedError", "RegistryState", "StoredSchema", "Submission"]

AnswerT_co = TypeVar("AnswerT_co", covariant=True)
Log = tuple[bytes, bytes | None]
Schema = Mapping[str, Any] | bool  # Any: JSON

MAX_ID = 2**31 - 1


class Mode(StrEnum):
    """Who may write to a subject."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"


class RefusedError(Exception):
    """A request that is understood and not possible. `code` is the registry's; its first digits are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        self.code = code
        self.message = message
        super().__init__(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A schema as a client sends it.

    Raises:
        RefusedError: 42201, it is no schema of its type.
    """

    text: str
    references: tuple[Reference, ...] = ()
    type: str = "JSON"
    document: Any = field(init=False)  # Any: JSON, or a file descriptor

    def __post_init__(self) -> None:
        if self.type in {"AVRO", "PROTOBUF"}:
            if self.references:
                message = f"Invalid schema: this registry knows no references of {self.type} schemas; send one whole"
                raise RefusedError(42201, message)
            try:
                parsed = avro_document(self.text) if self.type == "AVRO" else protobuf_document(self.text)
            except ValueError as error:
                message = f"Invalid schema: it is no {self.type} schema ({error})"
                raise RefusedError(42201, message) from error
            object.__setattr__(self, "document", parsed)
            return
        if self.type != "JSON":
            message = f"Invalid schema: {self.type!r} is none of JSON, AVRO and PROTOBUF"
            raise RefusedError(42201, message)
        try:
            document = json.loads(self.text)
        except ValueError as error:
            message = f"Invalid schema: it is no JSON ({error})"
            raise RefusedError(42201, message) from error
        if not isinstance(document, (dict, bool)):
            message = "Invalid schema: a JSON Schema is an object or a boolean"
            raise RefusedError(42201, message)
        try:
            if isinstance(document, dict):
                validator_for(document).check_schema(document)
        except SchemaError as error:
            place = "/".join(["#", *(str(part) for part in error.absolute_path)])
            message = f"Invalid schema: {error.message} at {place}"
            raise RefusedError(42201, message) from error
        object.__setattr__(self, "document", document)

    @property
    def guid(self) -> str:
        """See `guid_of`."""
        return guid_of(self.text if self.type == "PROTOBUF" else self.document, self.references)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchema:
    """One version of one subject."""

    subject: str
    version: int
    id: int
    guid: str
    text: str
    references: tuple[Reference, ...]
    type: str = "JSON"
    is_deleted: bool = False

    def record(self) -> Log:
        """Key and value in the topic."""
        value: dict[str, Any] = {"subject": self.subject, "version": self.version, "id": self.id}
        value["schemaType"] = self.type
        if self.references:
            value["references"] = [
                {"name": r.name, "subject": r.subject, "version": r.version} for r in self.references
            ]
        return _schema_key(self.subject, self.version), _json(
            {**value, "schema": self.text, "deleted": self.is_deleted}
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision(Generic[AnswerT_co]):
    """What to append to the topic, and what to answer when that is done."""

    answer: AnswerT_co
    records: tuple[Log, ...] = ()


class RegistryState:
    """Subjects, versions, configurations and modes. Changes in `replay` only."""

    def __init__(self, *, level: Level = Level.BACKWARD, policy: Policy = Policy.STRICT) -> None:
        self._level = level
        self._policy = policy
        self._subjects: dict[str, dict[int, StoredSchema]] = {}
        self._places: dict[int, set[tuple[str, int]]] = {}
        self._id_of: dict[str, int] = {}
        self._configs: dict[str | None, Mapping[str, Any]] = {}
        self._modes: dict[str | None, Mode] = {}
        self._last_id = 0

    # -------------------------------------------------------------------------------------------- replay

    def replay(self, key: bytes | None, value: bytes | None) -> None:
        """Take one record of the topic. What this registry does not know, it passes over."""
        try:
            place = json.loads(key or b"")
            content = json.loads(value) if value is not None else None
            self._apply(place, content)
        except (ValueError, KeyError, TypeError, RefusedError):
            return  # Protobuf text of another registry, or no record of a registry at all

    def _apply(self, key: Mapping[str, Any], value: Mapping[str, Any] | None) -> None:
        subject = key.get("subject")
        match key["keytype"]:
            case "SCHEMA":
                self._forget(key["subject"], key["version"])
                if value is not None:
                    self._keep(value)
            case "DELETE_SUBJECT" if value is not None:
                for version, stored in self._subjects.get(key["subject"], {}).items():
                    if version <= value["version"]:
                        self._subjects[key["subject"]][version] = replace(stored, is_deleted=True)
            case "CONFIG":
                _set(self._configs, subject, value)
            case "MODE":
                _set(self._modes, subject, Mode(value["mode"]) if value is not None else None)
            case "CLEAR_SUBJECT":
                for version in tuple(self._subjects.get(key["subject"], ())):
                    self._forget(key["subject"], version)
            case "NOOP" if value is not None:
                self._last_id = max(self._last_id, int(value.get("lastId", 0)))

    def _keep(self, value: Mapping[str, Any]) -> None:
        references = tuple(Reference(r["name"], r["subject"], int(r["version"])) for r in value.get("references") or ())
        submission = Submission(text=value["schema"], references=references, type=value.get("schemaType", "AVRO"))
        stored = StoredSchema(
            subject=value["subject"],
            version=int(value["version"]),
            id=int(value["id"]),
            guid=submission.guid,
            text=submission.text,
            references=references,
            type=submission.type,
            is_deleted=bool(value.get("deleted")),
        )
        self._subjects.setdefault(stored.subject, {})[stored.version] = stored
        self._places.setdefault(stored.id, set()).add((stored.subject, stored.version))
        self._id_of.setdefault(stored.guid, stored.id)
        self._last_id = max(self._last_id, stored.id)

    def _forget(self, subject: str, version: int) -> None:
        stored = self._subjects.get(subject, {}).pop(version, None)
        if stored is None:
            return
        if not self._subjects[subject]:
            del self._subjects[subject]
        places = self._places[stored.id]
        places.discard((subject, version))
        if not places:
            del self._places[stored.id]
            if self._id_of.get(stored.guid) == stored.id:
                del self._id_of[stored.guid]

    # -------------------------------------------------------------------------------------------- looking

    def subjects(self, *, prefix: str = "", deleted: bool = False, deleted_only: bool = False) -> list[str]:
        """Names of subjects, sorted."""
        found = []
        for name, versions in sorted(self._subjects.items()):
            is_gone = all(stored.is_deleted for stored in versions.values())
            if name.startswith(prefix) and (is_gone if deleted_only else (deleted or not is_gone)):
                found.append(name)
        return found

    def versions(self, subject: str, *, deleted: bool = False, deleted_only: bool = False) -> list[StoredSchema]:
        """Versions of a subject, ascending. Raises `RefusedError` 40401."""
        every = [stored for _, stored in sorted(self._subjects.get(subject, {}).items())]
        found = [s for s in every if (s.is_deleted if deleted_only else (deleted or not s.is_deleted))]
        if not found:
            raise RefusedError(40401, f"Subject '{subject}' not found.")
        return found

    def version(self, subject: str, number: str, *, deleted: bool = False) -> StoredSchema:
        """One version; `latest` and -1 are the last. Raises `RefusedError` 40401, 40402, 42202."""
        wanted = _version_number(number)
        found = self.versions(subject, deleted=deleted)
        if wanted is None:
            return found[-1]
        for stored in found:
            if stored.version == wanted:
                return stored
        raise RefusedError(40402, f"Version {wanted} not found.")

    def by_id(self, id: int) -> StoredSchema:
        """A schema by its number, soft-deleted ones included. Raises `RefusedError` 40403."""
        places = self._places.get(id)
        if not places:
            raise RefusedError(40403, f"Schema {id} not found")
        subject, version = min(places)
        return self._subjects[subject][version]

    def by_guid(self, guid: str) -> StoredSchema:
        """A schema by its GUID. Raises `RefusedError` 40403."""
        try:
            found = self._id_of.get(str(UUID(guid)))
        except ValueError:
            found = None
        if found is None:
            raise RefusedError(40403, f"Schema {guid} not found")
        return self.by_id(found)

    def places(self, id: int, *, deleted: bool = False) -> list[tuple[str, int]]:
        """Subjects and versions that have a schema. Raises `RefusedError` 40403."""
        self.by_id(id)
        return [p for p in sorted(self._places[id]) if deleted or not self._subjects[p[0]][p[1]].is_deleted]

    def referrers(self, subject: str, version: int) -> list[int]:
        """Ids of the schemas that refer to a version of a subject, ascending."""
        return sorted(
            {
                stored.id
                for versions in self._subjects.values()
                for stored in versions.values()
                if not stored.is_deleted
                and any(r.subject == subject and r.version == version for r in stored.references)
            }
        )

    def lookup(self, subject: str, submission: Submission, *, deleted: bool = False) -> StoredSchema:
        """The version of a subject that has this schema. Raises `RefusedError` 40401, 40403."""
        for stored in reversed(self.versions(subject, deleted=deleted)):
            if stored.guid == submission.guid:
                return stored
        raise RefusedError(40403, "Schema not found")

    def config(self, subject: str | None, *, default_to_global: bool = False) -> dict[str, Any]:
        """Compatibility of a subject or, for None, of the registry. Raises `RefusedError` 40408."""
        own = self._configs.get(subject)
        if own is None and subject is not None and not default_to_global:
            message = f"Subject '{subject}' does not have subject-level compatibility configured"
            raise RefusedError(40408, message)
        if own is not None and subject is not None:
            return dict(own)
        default: dict[str, Any] = {"compatibilityLevel": self._level.value, "compatibilityPolicy": self._policy.value}
        return {**default, **self._configs.get(None, {})}

    def mode(self, subject: str | None, *, default_to_global: bool = False) -> Mode:
        """Mode of a subject or, for None, of the registry. Raises `RefusedError` 40409."""
        own = self._modes.get(subject)
        if own is not None:
            return own
        if subject is not None and not default_to_global:
            raise RefusedError(40409, f"Subject '{subject}' does not have subject-level mode configured")
        return self._modes.get(None, Mode.READWRITE)

    # -------------------------------------------------------------------------------------------- compatibility

    def incompatibilities(self, subject: str, submission: Submission, against: Sequence[StoredSchema]) -> list[str]:
        """Why a subject's level forbids a schema after these versions; each a sentence with its place."""
        config = {**self.config(None), **self._configs.get(subject, {})}
        level, policy = Level(config["compatibilityLevel"]), Policy(config["compatibilityPolicy"])
        if submission.type != "JSON" or any(stored.type != "JSON" for stored in against):
            if others := sorted({stored.type for stored in against} - {submission.type}):
                return [] if level is Level.NONE else [f"the subject has {', '.join(others)} schemas"]
            earlier = [Submission(text=stored.text, type=stored.type).document for stored in against]
            return format_breaks(submission.type, submission.document, earlier, level)
        new = self._bundle(submission.document, submission.references)
        history = [self._bundle(json.loads(stored.text), stored.references) for stored in against]
        found = breaks(new, history, level=level, policy=policy, formats=False)
        return [_sentence(difference) for difference in found]

    def _bundle(self, document: Schema, references: Iterable[Reference], depth: int = 0) -> Schema:
        """A schema with everything that it refers to. Raises `RefusedError` 42201 for a reference to nothing."""
        if depth > 20:
            raise RefusedError(42201, "Invalid schema: its references go in a circle")
        others: dict[str, Schema] = {}
        for reference in references:
            stored = self._subjects.get(reference.subject, {}).get(reference.version)
            if stored is None:
                message = (
                    f"Invalid schema: reference {reference.name!r} is to subject '{reference.subject}' version "
                    f"{reference.version}, which does not exist"
                )
                raise RefusedError(42201, message)
            others[reference.name] = self._bundle(json.loads(stored.text), stored.references, depth + 1)
        return bundled(document, others)

    # -------------------------------------------------------------------------------------------- deciding

    def register(
        self,
        subject: str,
        submission: Submission,
        *,
        id: int | None = None,
        version: int | None = None,
    ) -> Decision[StoredSchema]:
        """Add a version, or find the one that has this schema already.

        Args:
            subject: Its subject; made when it is new.
            submission: The schema.
            id: Only in mode IMPORT: the number that it had elsewhere.
            version: Only in mode IMPORT.

        Raises:
            RefusedError: 40901, the subject's level forbids it; 42201, a reference leads nowhere; 42205, the mode
                forbids writing.
        """
        if not subject.strip():
            raise RefusedError(42208, "The subject name is empty")
        mode = self._writable(subject)
        if submission.type == "JSON":
            self._bundle(submission.document, submission.references)
        every = self._subjects.get(subject, {})
        living = [stored for _, stored in sorted(every.items()) if not stored.is_deleted]
        for stored in living:
            if stored.guid == submission.guid and (id is None or id == stored.id):
                return Decision(answer=stored)
        if (id is not None or version is not None) and mode is not Mode.IMPORT:
            raise RefusedError(
                42205, f"Subject '{subject}' is not in import mode, so id and version are not the caller's"
            )
        if mode is not Mode.IMPORT and (reasons := self.incompatibilities(subject, submission, living)):
            level = self.config(subject, default_to_global=True)["compatibilityLevel"]
            message = (
                f"Schema being registered is incompatible with an earlier schema for subject '{subject}', "
                f"level {level}: {'; '.join(reasons)}"
            )
            raise RefusedError(40901, message)
        chosen = id if id is not None else self._id_of.get(submission.guid, self._last_id + 1)
        if not 0 < chosen <= MAX_ID:
            raise RefusedError(42201, f"Schema id {chosen} is not between 1 and {MAX_ID}")
        if (taken := self._places.get(chosen)) and self.by_id(chosen).guid != submission.guid:
            raise RefusedError(42205, f"Schema id {chosen} belongs to another schema, of subject '{min(taken)[0]}'")
        new = StoredSchema(
            subject=subject,
            version=version if version is not None else max(every, default=0) + 1,
            id=chosen,
            guid=submission.guid,
            text=submission.text,
            references=submission.references,
            type=submission.type,
        )
        return Decision(answer=new, records=(new.record(),))

    def delete_version(self, subject: str, number: str, *, permanent: bool) -> Decision[int]:
        """Delete a version, softly first and then for good. Raises `RefusedError` 40401, 40402, 40406, 40407, 42206."""
        self._writable(subject)
        stored = self.version(subject, number, deleted=True)
        if permanent and not stored.is_deleted:
            message = (
                f"Subject '{subject}' Version {stored.version} was not deleted first before being permanently deleted"
            )
            raise RefusedError(40407, message)
        if not permanent and stored.is_deleted:
            message = f"Subject '{subject}' Version {stored.version} was soft deleted. Set permanent=true to delete it"
            raise RefusedError(40406, message)
        self._unreferred([stored])
        if permanent:
            return Decision(answer=stored.version, records=self._removal([stored]))
        return Decision(answer=stored.version, records=(replace(stored, is_deleted=True).record(),))

    def delete_subject(self, subject: str, *, permanent: bool) -> Decision[list[int]]:
        """Delete all versions, softly first and then for good. Raises `RefusedError` 40401, 40404, 40405, 42206."""
        self._writable(subject)
        every = self.versions(subject, deleted=True)
        living = [stored for stored in every if not stored.is_deleted]
        if permanent and living:
            message = f"Subject '{subject}' was not deleted first before being permanently deleted"
            raise RefusedError(40405, message)
        if not permanent and not living:
            message = f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
            raise RefusedError(40404, message)
        self._unreferred(every)
        if permanent:
            settings: tuple[Log, ...] = ()
            if subject in self._configs:
                settings += ((_setting_key("CONFIG", subject), None),)
            if subject in self._modes:
                settings += ((_setting_key("MODE", subject), None),)
            return Decision(answer=[s.version for s in every], records=(*self._removal(every), *settings))
        return Decision(
            answer=[stored.version for stored in living],
            records=tuple(replace(stored, is_deleted=True).record() for stored in living),
        )

    def set_config(self, subject: str | None, changes: Mapping[str, Any]) -> Decision[dict[str, Any]]:
        """Change compatibility. Raises `RefusedError` 42203."""
        config: dict[str, Any] = dict(self._configs.get(subject, {}))
        level = changes.get("compatibility", changes.get("compatibilityLevel"))
        policy = changes.get("compatibilityPolicy")
        unknown = sorted(changes.keys() - {"compatibility", "compatibilityLevel", "compatibilityPolicy", "normalize"})
        unknown = [name for name in unknown if changes[name] is not None]
        if unknown:
            raise RefusedError(42203, f"Invalid configuration: {', '.join(unknown)} cannot be set here")
        if level is None and policy is None:
            raise RefusedError(42203, f"Invalid compatibility level. Valid values are {', '.join(Level)}")
        if level is not None:
            if str(level).upper() not in set(Level):
                raise RefusedError(42203, f"Invalid compatibility level. Valid values are {', '.join(Level)}")
            config["compatibilityLevel"] = str(level).upper()
        if policy is not None:
            if str(policy).upper() not in set(Policy):
                raise RefusedError(42203, f"Invalid compatibility policy. Valid values are {', '.join(Policy)}")
            config["compatibilityPolicy"] = str(policy).upper()
        config.setdefault("compatibilityLevel", self.config(None)["compatibilityLevel"])
        answer = {"compatibility": config["compatibilityLevel"]}
        if "compatibilityPolicy" in config:
            answer["compatibilityPolicy"] = config["compatibilityPolicy"]
        return Decision(answer=answer, records=((_setting_key("CONFIG", subject), _json(config)),))

    def delete_config(self, subject: str | None) -> Decision[dict[str, Any]]:
        """Go back to the default; the answer is what was. Raises `RefusedError` 40401."""
        if subject is not None and subject not in self._configs:
            raise RefusedError(40401, f"Subject '{subject}' not found.")
        before = self.config(subject)
        return Decision(answer=before, records=((_setting_key("CONFIG", subject), None),))

    def set_mode(self, subject: str | None, mode: str, *, force: bool) -> Decision[Mode]:
        """Change who may write. Raises `RefusedError` 42204, 42205."""
        if mode.upper() not in set(Mode):
            raise RefusedError(42204, f"Invalid mode. Valid values are {', '.join(Mode)}")
        wanted = Mode(mode.upper())
        taken = [subject] if subject in self._subjects else [] if subject is not None else list(self._subjects)
        if wanted is Mode.IMPORT and taken and not force and self.mode(subject, default_to_global=True) is not wanted:
            message = f"Cannot import since found existing subjects ({', '.join(sorted(taken)[:3])}); use force=true"
            raise RefusedError(42205, message)
        return Decision(answer=wanted, records=((_setting_key("MODE", subject), _json({"mode": wanted.value})),))

    def delete_mode(self, subject: str | None) -> Decision[Mode]:
        """Go back to the default; the answer is what was. Raises `RefusedError` 40409."""
        return Decision(answer=self.mode(subject), records=((_setting_key("MODE", subject), None),))

    def _writable(self, subject: str) -> Mode:
        mode = self.mode(subject, default_to_global=True)
        overridden = self._modes.get(None) is Mode.READONLY_OVERRIDE
        if overridden or mode in {Mode.READONLY, Mode.READONLY_OVERRIDE}:
            raise RefusedError(42205, f"Subject '{subject}' is in read-only mode")
        return mode

    def _unreferred(self, schemas: Iterable[StoredSchema]) -> None:
        for stored in schemas:
            if found := self.referrers(stored.subject, stored.version):
                message = (
                    "One or more references exist to the schema "
                    f"{{subject={stored.subject},version={stored.version}}}: "
                    f"schema ids {', '.join(map(str, found))}"
                )
                raise RefusedError(42206, message)

    def _removal(self, schemas: Sequence[StoredSchema]) -> tuple[Log, ...]:
        """Tombstones, and the highest id, so that compaction does not make a number come twice."""
        last = (_json({"keytype": "NOOP", "magic": 0}), _json({"lastId": self._last_id}))
        return (last, *((_schema_key(stored.subject, stored.version), None) for stored in schemas))


def _set(settings: dict[str | None, Any], subject: str | None, value: object | None) -> None:
    if value is None:
        settings.pop(subject, None)
    else:
        settings[subject] = value


def _version_number(text: str) -> int | None:
    """None is the latest. Raises `RefusedError` 42202."""
    if text in {"latest", "-1"}:
        return None
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= MAX_ID:
        message = (
            f"The specified version '{text}' is not a valid version id. Allowed values are between [1, 2^31-1] "
            'and the string "latest"'
        )
        raise RefusedError(42202, message)
    return int(text)


def _sentence(difference: Difference) -> str:
    return f"{difference.pointer}: {difference.sentence}"


def _schema_key(subject: str, version: int) -> bytes:
    return _json({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def _setting_key(keytype: str, subject: str | None) -> bytes:
    return _json({"keytype": keytype, "subject": subject, "magic": 0})


def _json(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
