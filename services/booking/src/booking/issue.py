"""`booking-token`: makes keys and signs tokens, for trying booking out and for setting it up."""

import argparse
import base64
import json
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hailbus.clock import utc_now
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from booking.adapters.http.tokens import ROLES

Jwk = dict[str, Any]  # Any: JSON
SIGNING_KEY: Final = "signing-key.json"
PUBLIC_KEYS: Final = "keys.json"
HOURS: Final = 12.0


class _UserError(Exception):
    """The command cannot be done as told; the message says what to do."""


def _ed25519() -> tuple[Jwk, Jwk]:
    key = ed25519.Ed25519PrivateKey.generate()
    return OKPAlgorithm.to_jwk(key, as_dict=True), OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)


def _p256() -> tuple[Jwk, Jwk]:
    key = ec.generate_private_key(ec.SECP256R1())
    return ECAlgorithm.to_jwk(key, as_dict=True), ECAlgorithm.to_jwk(key.public_key(), as_dict=True)


def _rsa() -> tuple[Jwk, Jwk]:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    return RSAAlgorithm.to_jwk(key, as_dict=True), RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)


def _secret() -> tuple[Jwk, Jwk]:
    key = {"kty": "oct", "k": base64.urlsafe_b64encode(secrets.token_bytes(32)).rstrip(b"=").decode()}
    return key, dict(key)


_MAKERS: Final[Mapping[str, Callable[[], tuple[Jwk, Jwk]]]] = MappingProxyType(
    {"EdDSA": _ed25519, "ES256": _p256, "RS256": _rsa, "HS256": _secret}
)


def make_keys(folder: Path, *, algorithm: str = "EdDSA") -> tuple[Path, Path]:
    """Make a key; return the file to sign with, and the JWKS file for `BOOKING_AUTH_KEYS`.

    Both files are readable by their owner only: with HS256 the second holds the secret, too.

    Raises:
        FileExistsError: A file is there already; keys are not overwritten.
    """
    private, public = _MAKERS[algorithm]()
    kid = secrets.token_hex(8)
    more = {"kid": kid, "alg": algorithm, "use": "sig"}
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / SIGNING_KEY, folder / PUBLIC_KEYS
    for path, content in zip(paths, ({**private, **more}, {"keys": [{**public, **more}]}), strict=True):
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return paths


def sign(
    key: Mapping[str, Any],  # Any: JSON
    *,
    role: str,
    subject: str,
    lasts: timedelta,
    issuer: str | None = None,
    audience: str | None = None,
) -> str:
    """Return a token.

    Args:
        key: A private JWK with `kid` and `alg`, as `make_keys` writes it.
        role: The claim `role`.
        subject: The claim `sub`.
        lasts: From now to the claim `exp`.
        issuer: The claim `iss`, left out if None.
        audience: The claim `aud`, left out if None.
    """
    now = utc_now()
    claims = {"sub": subject, "role": role, "iat": now, "exp": now + lasts, "iss": issuer, "aud": audience}
    given = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(given, jwt.PyJWK(dict(key)).key, algorithm=key["alg"], headers={"kid": key["kid"]})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Exit code 2 and one sentence when it cannot be done as told."""
    parser = argparse.ArgumentParser(prog="booking-token", description="Make keys and sign tokens for booking.")
    commands = parser.add_subparsers(required=True)
    keys = commands.add_parser("keys", help=f"write FOLDER/{SIGNING_KEY} and FOLDER/{PUBLIC_KEYS}")
    keys.add_argument("folder", type=Path)
    keys.add_argument("--algorithm", choices=sorted(_MAKERS), default="EdDSA")
    keys.set_defaults(run=_keys)
    signs = commands.add_parser("sign", help="print a token")
    signs.add_argument("key", type=Path, help=f"a {SIGNING_KEY}")
    signs.add_argument("role", choices=sorted(ROLES))
    signs.add_argument("subject", help="the id of the rider, driver, fleet or operator")
    signs.add_argument("--hours", type=float, default=HOURS, help="how long the token is valid (%(default)g)")
    signs.add_argument("--issuer", help="the claim iss")
    signs.add_argument("--audience", help="the claim aud")
    signs.set_defaults(run=_sign)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except _UserError as error:
        print(f"booking-token: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def _keys(options: argparse.Namespace) -> None:
    try:
        signing, public = make_keys(options.folder, algorithm=options.algorithm)
    except FileExistsError as error:
        raise _UserError(f"{error.filename} exists; name another folder, or remove it") from error
    except OSError as error:
        raise _UserError(f"{options.folder} cannot be written: {error.strerror}; name another folder") from error
    print(f"sign with {signing}; start booking with BOOKING_AUTH_KEYS={public}")


def _sign(options: argparse.Namespace) -> None:
    try:
        key = json.loads(options.key.read_text(encoding="utf-8"))
        token = sign(
            key,
            role=options.role,
            subject=options.subject,
            lasts=timedelta(hours=options.hours),
            issuer=options.issuer,
            audience=options.audience,
        )
    except OSError as error:
        raise _UserError(f"{options.key} cannot be read: {error.strerror}; name a {SIGNING_KEY}") from error
    except (ValueError, KeyError, TypeError, OverflowError, jwt.PyJWTError) as error:
        raise _UserError(f"{options.key} cannot sign: {error}; `booking-token keys` writes a key") from error
    print(token)


if __name__ == "__main__":
    main()
