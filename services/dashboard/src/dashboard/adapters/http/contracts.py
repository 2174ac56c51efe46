"""The contracts over HTTP: who reads which field, and the judgement of a proposed change. Nothing is stored."""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Annotated, Any, Literal, Self

from fastapi import APIRouter
from hailbus.fastapi import ProblemError
from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from dashboard.domain import proposals
from dashboard.domain.contracts import Contracts, Entry, verdict
from dashboard.domain.proposals import Schema

Json = dict[str, Any]  # Any: JSON
_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
Path = Annotated[
    str,
    Field(pattern=rf"^{_NAME}((\[\])*\.{_NAME})*$", max_length=300, description="As listed, for example `pickup.lat`."),
]
TypeName = Literal["string", "integer", "number", "boolean", "date-time"]


class _Operation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    field: Path


class Remove(_Operation):
    """Remove a field."""

    op: Literal["remove"]

    def apply(self, schema: Mapping[str, Any]) -> Schema:
        """Return the changed schema."""
        return proposals.remove(schema, self.field)


class Rename(_Operation):
    """Rename a field."""

    op: Literal["rename"]
    to: Annotated[str, Field(pattern=rf"^{_NAME}$", description="The new name, without what the field is in.")]

    def apply(self, schema: Mapping[str, Any]) -> Schema:
        """Return the changed schema."""
        return proposals.rename(schema, self.field, self.to)


class Require(_Operation):
    """Remove the default of a field."""

    op: Literal["require"]

    def apply(self, schema: Mapping[str, Any]) -> Schema:
        """Return the changed schema."""
        return proposals.require(schema, self.field)


class MakeOptional(_Operation):
    """Let a field be null, which becomes its default."""

    op: Literal["optional"]

    def apply(self, schema: Mapping[str, Any]) -> Schema:
        """Return the changed schema."""
        return proposals.make_optional(schema, self.field)


class Retype(_Operation):
    """Change the type of a field."""

    op: Literal["retype"]
    type: TypeName
    nullable: bool = False

    def apply(self, schema: Mapping[str, Any]) -> Schema:
        """Return the changed schema."""
        return proposals.retype(schema, self.field, self.type, is_nullable=self.nullable)


class Add(_Operation):
    """Add a field, with a default if one is given."""

    op: Literal["add"]
    type: TypeName
    nullable: bool = False
    default: JsonValue = None

    def apply(self, schema: Mapping[str, Any]) -> Schema:
        """Return the changed schema."""
        default = self.default if "default" in self.model_fields_set else proposals.NO_DEFAULT
        return proposals.add(schema, self.field, self.type, is_nullable=self.nullable, default=default)


Operation = Annotated[Remove | Rename | Require | MakeOptional | Retype | Add, Field(discriminator="op")]


class Proposal(BaseModel):
    """A change of one version of an event: operations, which are made in turn, or the whole edited JSON Schema."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(max_length=200, examples=["ride.completed"])
    version: int = Field(default=1, ge=1, le=1_000_000)
    changes: list[Operation] | None = Field(default=None, min_length=1, max_length=20)
    edited: dict[str, Any] | None = Field(default=None, alias="schema", description="In place of `changes`.")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.changes is None) == (self.edited is None):
            raise ValueError("give either changes or schema")
        return self

    def apply(self, schema: Mapping[str, Any]) -> Schema:
        """Return the changed schema."""
        if self.edited is not None:
            return proposals.edited(self.edited)
        return reduce(lambda changed, change: change.apply(changed), self.changes or (), dict(schema))


def contracts_router(contracts: Contracts, publishers: Callable[[str], list[str]]) -> APIRouter:
    """Return the routes.

    Args:
        contracts: All contracts and needs.
        publishers: Returns the services that were seen writing to a topic.
    """
    router = APIRouter(prefix="/api/contracts", tags=["contracts"])

    def found(type: str, version: int) -> Entry:
        entry = contracts.find(type, version)
        if entry is None:
            raise ProblemError(
                "not-found", f"there is no event {type[:200]!r} v{version}; GET /api/contracts lists all events"
            )
        return entry

    @router.get("", summary="All events, their fields, and who reads which")
    async def listed() -> Json:
        return {
            "topics": [
                {"name": name, "about": about, "publishers": publishers(name)}
                for name, about in contracts.topics.items()
            ],
            "events": [_entry_view(entry, publishers) for entry in contracts.entries],
            "types": list(proposals.TYPES),
        }

    @router.get("/{type}/v{version}", summary="One contract, with its JSON Schema")
    async def one(type: str, version: int) -> Json:
        return found(type, version).contract.as_json()

    @router.post("/check", summary="What a proposed change would break; it changes nothing")
    def check(proposal: Proposal) -> Json:  # not async: a large schema is compared in a thread
        entry = found(proposal.type, proposal.version)
        effects = contracts.judge(entry, proposal.apply)
        return {
            "type": proposal.type,
            "version": proposal.version,
            "breaking": any(effect.is_breaking for effect in effects),
            "verdict": verdict(effects),
            "effects": [
                {
                    "kind": effect.kind,
                    "consumer": effect.consumer or None,
                    "field": effect.field or None,
                    "words": effect.words,
                }
                for effect in effects
            ],
        }

    return router


def _entry_view(entry: Entry, publishers: Callable[[str], list[str]]) -> Json:
    contract = entry.contract
    return {
        "type": contract.type,
        "version": contract.version,
        "topic": contract.topic,
        "key": contract.key,
        "about": entry.about,
        "publishers": publishers(contract.topic),
        "consumers": list(entry.consumers),
        "whole": [{"consumer": reader.name, "words": reader.words} for reader in entry.whole],
        "fields": [
            {
                "path": field.path,
                "type": field.type,
                "about": field.about,
                "required": field.is_required,
                "consumers": dict(field.readers),
            }
            for field in entry.fields
        ],
    }


__all__ = ["contracts_router"]
