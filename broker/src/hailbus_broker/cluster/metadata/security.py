"""The part of the image that holds credentials, access rules and tokens.

Nothing uses them yet; a snapshot keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hailbus_broker.cluster.metadata.names import InconsistentRecordError
from hailbus_broker.protocol.definitions.access_control_entry_record import AccessControlEntryRecord
from hailbus_broker.protocol.definitions.delegation_token_record import DelegationTokenRecord
from hailbus_broker.protocol.definitions.user_scram_credential_record import UserScramCredentialRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hailbus_broker.protocol.definitions.remove_access_control_entry_record import RemoveAccessControlEntryRecord
    from hailbus_broker.protocol.definitions.remove_delegation_token_record import RemoveDelegationTokenRecord
    from hailbus_broker.protocol.definitions.remove_user_scram_credential_record import RemoveUserScramCredentialRecord
    from hailbus_broker.protocol.schema import Message, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """What a server needs to check a password (RFC 5802); the password itself is in no record."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControlEntry:
    """A rule that allows or denies an operation; the numbers are those of the protocol."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationToken:
    """A token that stands for its owner."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiration_timestamp: int


class Security:
    """All credentials, rules and tokens. They are immutable."""

    def __init__(self) -> None:
        self.scram: Final[dict[tuple[int, str], ScramCredential]] = {}
        """By mechanism and user."""
        self.acls: Final[dict[Uuid, AccessControlEntry]] = {}
        self.tokens: Final[dict[str, DelegationToken]] = {}

    def copy(self) -> Security:
        """Return the same values; both change by themselves."""
        other = Security()
        other.scram.update(self.scram)
        other.acls.update(self.acls)
        other.tokens.update(self.tokens)
        return other

    def set_scram(self, record: UserScramCredentialRecord) -> None:
        """Apply a credential, which replaces an earlier one."""
        self.scram[record.mechanism, record.name] = ScramCredential(
            salt=bytes(record.salt),
            stored_key=bytes(record.stored_key),
            server_key=bytes(record.server_key),
            iterations=record.iterations,
        )

    def remove_scram(self, record: RemoveUserScramCredentialRecord) -> None:
        """Apply the end of a credential."""
        if self.scram.pop((record.mechanism, record.name), None) is None:
            raise InconsistentRecordError(f"a metadata record removes the unknown credential of '{record.name}'")

    def add_acl(self, record: AccessControlEntryRecord) -> None:
        """Apply a rule."""
        self.acls[bytes(record.id)] = AccessControlEntry(
            resource_type=record.resource_type,
            resource_name=record.resource_name,
            pattern_type=record.pattern_type,
            principal=record.principal,
            host=record.host,
            operation=record.operation,
            permission_type=record.permission_type,
        )

    def remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        """Apply the end of a rule."""
        if self.acls.pop(bytes(record.id), None) is None:
            raise InconsistentRecordError(f"a metadata record removes the unknown rule {bytes(record.id).hex()}")

    def set_token(self, record: DelegationTokenRecord) -> None:
        """Apply a token, which replaces an earlier one of its id."""
        self.tokens[record.token_id] = DelegationToken(
            owner=record.owner,
            requester=record.requester,
            renewers=tuple(record.renewers),
            issue_timestamp=record.issue_timestamp,
            max_timestamp=record.max_timestamp,
            expiration_timestamp=record.expiration_timestamp,
        )

    def remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        """Apply the end of a token."""
        if self.tokens.pop(record.token_id, None) is None:
            raise InconsistentRecordError(f"a metadata record removes the unknown token '{record.token_id}'")

    def to_records(self) -> Iterator[Message]:
        """Return the records that make the same values from nothing."""
        for acl_id, acl in sorted(self.acls.items(), key=lambda item: item[0]):
            yield AccessControlEntryRecord(
                id=acl_id,
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission_type,
            )
        for (mechanism, name), credential in sorted(self.scram.items(), key=lambda item: item[0]):
            yield UserScramCredentialRecord(
                name=name,
                mechanism=mechanism,
                salt=credential.salt,
                stored_key=credential.stored_key,
                server_key=credential.server_key,
                iterations=credential.iterations,
            )
        for token_id, token in sorted(self.tokens.items(), key=lambda item: item[0]):
            yield DelegationTokenRecord(
                owner=token.owner,
                requester=token.requester,
                renewers=list(token.renewers),
                issue_timestamp=token.issue_timestamp,
                max_timestamp=token.max_timestamp,
                expiration_timestamp=token.expiration_timestamp,
                token_id=token_id,
            )
