"""Why a broker and a client cannot agree on TLS or SASL, which client libraries report as "no connection"."""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from typing import Any

from aiokafka import errors as kafka_errors

from hailbus._transport import aiokafka_private
from hailbus._transport.cluster import ClusterSettings
from hailbus.errors import BrokerUnreachableError, ConnectionRejectedError

__all__ = ["Refusal", "refusal", "unreachable"]

ATTEMPT_TIMEOUT_S = 5.0
TLS_ALERT = b"\x15\x03"
"""How a TLS alert begins, which a client without TLS takes for the length of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What does not fit, and which setting to change.

    Attributes:
        is_certain: Another attempt cannot end otherwise. Else the reason is likely, but a broker that starts or stops
            may look the same.
    """

    reason: str
    advice: str
    is_certain: bool = True


def unreachable(
    settings: ClusterSettings, waited_s: float, found: Refusal | None, *, reason: str = ""
) -> BrokerUnreachableError:
    """The error for a start that failed.

    Args:
        settings: Where it tried.
        waited_s: For how long.
        found: What was refused, if anything was.
        reason: What the client library says, where nothing better is known.
    """
    bootstrap = settings.bootstrap_servers
    if found is None:
        return BrokerUnreachableError(bootstrap=bootstrap, waited_s=waited_s, reason=reason)
    kind = ConnectionRejectedError if found.is_certain else BrokerUnreachableError
    return kind(bootstrap=bootstrap, waited_s=waited_s, reason=found.reason, advice=found.advice)


async def refusal(settings: ClusterSettings, arguments: dict[str, Any]) -> Refusal | None:
    """Connect once to each bootstrap server and tell what it refused; None when it would work, or nobody is there.

    Args:
        settings: What the user gave.
        arguments: The same as arguments of aiokafka.
    """
    for server in settings.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            async with asyncio.timeout(ATTEMPT_TIMEOUT_S):
                await aiokafka_private.try_connection(host, int(port), arguments)
        except (OSError, TimeoutError, kafka_errors.KafkaError) as error:
            found = _explained(error, settings, host)
            if found is not None:
                return found
    return None


def _explained(error: Exception, settings: ClusterSettings, host: str) -> Refusal | None:
    inner = error.__cause__ if isinstance(error, kafka_errors.KafkaConnectionError) else error
    encrypts, authenticates = settings.security_protocol.endswith("SSL"), settings.security_protocol.startswith("SASL")
    if isinstance(inner, ssl.SSLError):
        return _explained_tls(inner, settings, host)
    if isinstance(inner, kafka_errors.SaslAuthenticationFailed):
        return Refusal(
            reason=f"SASL: {inner.args[0] if inner.args else 'authentication failed'}",
            advice=f"check sasl_username= and sasl_password=, and that the user may use {settings.sasl_mechanism}",
        )
    if isinstance(inner, kafka_errors.UnsupportedSaslMechanismError):
        return Refusal(
            reason=f"the listener does not offer sasl_mechanism={settings.sasl_mechanism!r}",
            advice="give a mechanism that it has enabled",
        )
    if isinstance(inner, kafka_errors.IllegalSaslStateError):
        without = "SSL" if encrypts else "PLAINTEXT"
        return Refusal(
            reason="the listener has no SASL",
            advice=f"give security_protocol={without!r}, or the address of a listener with SASL",
        )
    if isinstance(inner, asyncio.IncompleteReadError) and not encrypts:
        first = (inner.expected or 0).to_bytes(8, "big")[4:]  # what was taken for a length
        if first.startswith(TLS_ALERT):
            return Refusal(
                reason="the listener speaks TLS",
                advice=f"give security_protocol={'SASL_SSL' if authenticates else 'SSL'!r}",
            )
    if isinstance(inner, (ConnectionResetError, asyncio.IncompleteReadError)):
        if encrypts:
            without = "SASL_PLAINTEXT" if authenticates else "PLAINTEXT"
            return Refusal(
                reason="the listener closed the connection during the TLS handshake",
                advice=f"if it has no TLS, give security_protocol={without!r}; else look at the broker's log",
                is_certain=False,
            )
        if not authenticates:
            return Refusal(
                reason="the listener closed the connection after the first request",
                advice="if it wants SASL, give security_protocol='SASL_PLAINTEXT'; else look at the broker's log",
                is_certain=False,
            )
    return None


def _explained_tls(error: ssl.SSLError, settings: ClusterSettings, host: str) -> Refusal:
    if isinstance(error, ssl.SSLCertVerificationError):
        if re.search("mismatch", error.verify_message, re.IGNORECASE):
            return Refusal(
                reason=f"the broker's certificate is not valid for {host!r}", advice="connect by a name that it has"
            )
        trusted = f"{settings.ssl_ca_file!r}" if settings.ssl_ca_file else "the system's authorities"
        return Refusal(
            reason=f"{trusted} did not sign the broker's certificate ({error.verify_message})",
            advice="give the authority that did by ssl_ca_file=",
        )
    if "ALERT" in (error.reason or "") and "CERTIFICATE" in (error.reason or ""):
        given = f"{settings.ssl_cert_file!r}" if settings.ssl_cert_file else "no certificate"
        return Refusal(
            reason=f"the broker wants a certificate of this client that it trusts, and got {given}",
            advice="give one by ssl_cert_file= and ssl_key_file=",
        )
    return Refusal(
        reason=f"the TLS handshake failed: {error.reason or error}",
        advice="check security_protocol= and the TLS settings of the listener",
        is_certain=False,
    )
