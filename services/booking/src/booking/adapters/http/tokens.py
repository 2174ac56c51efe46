"""Bearer tokens: JSON Web Tokens (RFC 7519) verified by keys that the configuration names."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from hailbus import ConfigurationError
from hailbus.clock import utc_now

from booking.domain.caller import Caller, Role

ALGORITHMS: Final[Mapping[tuple[str, str | None], str]] = MappingProxyType(
    {("OKP", "Ed25519"): "EdDSA", ("EC", "P-256"): "ES256", ("RSA", None): "RS256", ("oct", None): "HS256"}
)
"""The algorithm of each kind of key, by `kty` and `crv`. What a token claims about its algorithm chooses nothing."""
ROLES: Final = frozenset({Role.RIDER, Role.DRIVER, Role.FLEET, Role.OPERATOR})
TOKEN_BYTES_MAX: Final = 4_096
CACHED_MAX: Final = 10_000
"""Verified tokens that are remembered, the latest ones."""
_RSA_BITS_MIN: Final = 2_048
_SECRET_BYTES_MIN: Final = 32
_SUBJECT: Final = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth"})


class TokenError(Exception):
    """The token proves nothing; the message says why, and can be shown to its bearer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key and the one algorithm that it is used with."""

    kid: str
    algorithm: str
    material: Any  # Any: a public key of one of four kinds, as PyJWT takes it


def read_keys(path: Path) -> Mapping[str, Key]:
    """Return the keys of a JWKS file (RFC 7517) by their `kid`.

    Raises:
        ConfigurationError: The file cannot be read, or a key is weak, private, nameless or of an unknown kind.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["keys"]
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise TypeError
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error.strerror}; name a readable JWKS file") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _wrong(path, 'is no JWKS file, {"keys": […]}; `booking-token keys` writes one') from error
    if not found:
        raise _wrong(path, "holds no key; `booking-token keys` writes one")
    keys: dict[str, Key] = {}
    for number, one in enumerate(found, start=1):
        key = _key(path, number, one)
        if key.kid in keys:
            raise _wrong(path, f"holds two keys with the kid {key.kid!r}; give each its own")
        keys[key.kid] = key
    return MappingProxyType(keys)


class TokenVerifier:
    """Verifies tokens and returns their bearers.

    A verified token is remembered by its text until it expires, so that a caller's second request costs a look into a
    dictionary. Tokens expire by the machine's clock, in a replay too.

    Args:
        keys: By `kid`.
        issuer: Which `iss` a token must have; any if None.
        audience: Which `aud` a token must have; any if None.
        leeway_s: How far the issuer's clock may be off.
        cached_max: Tokens that are remembered.
        now: The machine's clock.
    """

    def __init__(
        self,
        keys: Mapping[str, Key],
        *,
        issuer: str | None = None,
        audience: str | None = None,
        leeway_s: int = 30,
        cached_max: int = CACHED_MAX,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._keys = keys
        self._issuer = issuer
        self._audience = audience
        self._leeway_s = leeway_s
        self._cached_max = cached_max
        self._now = now
        self._cached: dict[str, tuple[Caller, int]] = {}
        self.verified = 0
        """Signatures that were checked: the tokens that were not remembered."""

    def caller(self, token: str) -> Caller:
        """Return the bearer.

        Raises:
            TokenError: The token is not valid, or not any more.
        """
        cached = self._cached.get(token)
        if cached is None:
            caller, expires_s = self._verify(token)
            self._cached[token] = (caller, expires_s)
            if len(self._cached) > self._cached_max:
                del self._cached[next(iter(self._cached))]
            return caller
        caller, expires_s = cached
        if self._now().timestamp() >= expires_s + self._leeway_s:
            del self._cached[token]
            raise _expired(expires_s)
        return caller

    def _verify(self, token: str) -> tuple[Caller, int]:
        self.verified += 1
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenError(f"the token is longer than {TOKEN_BYTES_MAX} bytes")
        try:
            kid = jwt.get_unverified_header(token).get("kid")
            key = self._keys.get(kid) if isinstance(kid, str) else None
            if key is None and kid is None and len(self._keys) == 1:
                (key,) = self._keys.values()
            if key is None:
                raise TokenError("the token is signed by a key that this service does not know")
            claims = jwt.decode(
                token,
                key.material,
                algorithms=[key.algorithm],
                issuer=self._issuer,
                audience=self._audience,
                leeway=self._leeway_s,
                # A token for several services may name audiences; without one of our own there is nothing to compare.
                options={"require": ["exp", "sub", "role"], "verify_aud": self._audience is not None},
            )
            expires_s = int(claims["exp"])
        except jwt.ExpiredSignatureError as error:
            raise TokenError("the token has expired; get a new one") from error
        except jwt.ImmatureSignatureError as error:
            raise TokenError("the token is not valid yet; its nbf or iat is in the future") from error
        except jwt.MissingRequiredClaimError as error:
            raise TokenError(f"the token has no claim {error.claim}; it needs exp, sub and role") from error
        except jwt.InvalidIssuerError as error:
            raise TokenError("the token is of another issuer (iss)") from error
        except jwt.InvalidAudienceError as error:
            raise TokenError("the token is for another audience (aud)") from error
        except jwt.InvalidAlgorithmError as error:
            raise TokenError("the token's alg is not the one of its key") from error
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            raise TokenError("the token is malformed, or its signature is wrong") from error
        subject, role = claims["sub"], claims["role"]
        if not isinstance(role, str) or role not in ROLES:
            raise TokenError(f"the token's role is none of {', '.join(sorted(ROLES))}")
        if _SUBJECT.fullmatch(subject) is None:
            raise TokenError("the token's sub is no id: 1 to 64 letters, digits, or . _ : -")
        return Caller(role=Role(role), subject=subject), expires_s


def _expired(expires_s: int) -> TokenError:
    at = datetime.fromtimestamp(expires_s, UTC).isoformat()
    return TokenError(f"the token expired at {at}; get a new one")


def _key(path: Path, number: int, found: Mapping[str, Any]) -> Key:
    kid, kty, crv = found.get("kid"), found.get("kty"), found.get("crv")
    if not isinstance(kid, str) or not kid:
        raise _wrong(path, f"key {number} has no kid; give it one, and sign tokens with the same kid")
    algorithm = ALGORITHMS.get((kty, crv)) if isinstance(kty, str) and (crv is None or isinstance(crv, str)) else None
    if algorithm is None:
        raise _wrong(path, f"key {kid!r} is of no known kind; use OKP Ed25519, EC P-256, RSA or oct")
    if found.get("alg", algorithm) != algorithm:
        raise _wrong(path, f"key {kid!r} is for {found['alg']!r}; a key of its kind is used with {algorithm} only")
    if _PRIVATE & found.keys():
        raise _wrong(path, f"key {kid!r} is a private one; list its public half only")
    try:
        material = jwt.PyJWK(dict(found), algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError) as error:
        raise _wrong(path, f"key {kid!r} cannot be read: {error}") from error
    if isinstance(material, RSAPublicKey) and material.key_size < _RSA_BITS_MIN:
        raise _wrong(path, f"key {kid!r} has {material.key_size} bits; use {_RSA_BITS_MIN} or more")
    if isinstance(material, bytes) and len(material) < _SECRET_BYTES_MIN:
        raise _wrong(path, f"key {kid!r} has {len(material)} bytes; use {_SECRET_BYTES_MIN} or more")
    return Key(kid=kid, algorithm=algorithm, material=material)


def _wrong(path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f"BOOKING_AUTH_KEYS: {path} {what}")
