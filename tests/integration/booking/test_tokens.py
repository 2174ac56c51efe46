"""What a token must be to prove who calls, and what a key must be to be trusted."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from booking.adapters.http.tokens import TokenError, TokenVerifier, read_keys
from booking.domain.caller import Caller, Role
from booking.issue import main, make_keys, sign
from hailbus import ConfigurationError
from hypothesis import given, settings
from hypothesis import strategies as st

HOUR = timedelta(hours=1)
R1 = Caller(role=Role.RIDER, subject="r1")
Jwk = dict[str, Any]  # Any: JSON


def made(folder: Path, algorithm: str = "EdDSA") -> tuple[Jwk, Path]:
    signing, public = make_keys(folder, algorithm=algorithm)
    return json.loads(signing.read_text()), public


def raw(key: Jwk, claims: Jwk, *, algorithm: str | None = None, **header: object) -> str:
    """Sign whatever claims and header there are."""
    material = jwt.PyJWK(dict(key)).key
    return jwt.encode(claims, material, algorithm=algorithm or key["alg"], headers={"kid": key["kid"], **header})


def claims(**more: object) -> Jwk:
    given = {"sub": "r1", "role": "rider", "exp": datetime.now(UTC) + HOUR, **more}
    return {name: value for name, value in given.items() if value is not None}


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "RS256", "HS256"])
def test_a_token_by_each_kind_of_key_names_its_bearer(tmp_path: Path, algorithm: str) -> None:
    key, public = made(tmp_path, algorithm)
    verifier = TokenVerifier(read_keys(public))
    assert verifier.caller(sign(key, role="rider", subject="r1", lasts=HOUR)) == R1
    (found,) = read_keys(public).values()
    assert found.algorithm == algorithm


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "RS256", "HS256"])
def test_a_changed_token_proves_nothing(tmp_path: Path, algorithm: str) -> None:
    key, public = made(tmp_path, algorithm)
    head, _, signature = sign(key, role="rider", subject="r1", lasts=HOUR).split(".")
    other = sign(key, role="operator", subject="r1", lasts=HOUR).split(".")[1]
    with pytest.raises(TokenError, match="signature is wrong"):
        TokenVerifier(read_keys(public)).caller(f"{head}.{other}.{signature}")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": datetime(2020, 1, 1, tzinfo=UTC)}, "has expired"),
        ({"exp": None}, "no claim exp"),
        ({"exp": "soon"}, "malformed"),
        ({"sub": None}, "no claim sub"),
        ({"sub": ""}, "sub is no id"),
        ({"sub": "a b"}, "sub is no id"),
        ({"sub": "r1\n"}, "sub is no id"),
        ({"sub": 7}, "malformed"),
        ({"role": None}, "no claim role"),
        ({"role": "admin"}, "role is none of driver, fleet, operator, rider"),
        ({"role": "anyone"}, "role is none of"),
        ({"role": ["rider"]}, "role is none of"),
        ({"nbf": datetime(2999, 1, 1, tzinfo=UTC)}, "not valid yet"),
        ({"iss": "other"}, "another issuer"),
        ({"iss": None}, "no claim iss"),
        ({"aud": "other"}, "another audience"),
        ({"aud": None}, "no claim aud"),
    ],
)
def test_each_claim_is_checked(tmp_path: Path, changed: Jwk, reason: str) -> None:
    key, public = made(tmp_path)
    verifier = TokenVerifier(read_keys(public), issuer="city", audience="booking")
    good = {"iss": "city", "aud": ["booking", "bike"]}
    assert verifier.caller(raw(key, claims(**good))) == R1
    with pytest.raises(TokenError, match=reason):
        verifier.caller(raw(key, claims(**{**good, **changed})))


def test_a_token_of_an_unknown_key_proves_nothing(tmp_path: Path) -> None:
    (key, _), (_, public) = made(tmp_path / "a"), made(tmp_path / "b")
    for header in ({}, {"kid": "none"}):
        with pytest.raises(TokenError, match="does not know"):
            TokenVerifier(read_keys(public)).caller(raw(key, claims(), **header))


def test_a_token_without_kid_needs_an_only_key(tmp_path: Path) -> None:
    (key, one), (_, other) = made(tmp_path / "a"), made(tmp_path / "b")
    token = jwt.encode(claims(), jwt.PyJWK(dict(key)).key, algorithm="EdDSA")
    assert TokenVerifier(read_keys(one)).caller(token) == R1
    both = tmp_path / "both.json"
    both.write_text(
        json.dumps({"keys": [*json.loads(one.read_text())["keys"], *json.loads(other.read_text())["keys"]]})
    )
    with pytest.raises(TokenError, match="does not know"):
        TokenVerifier(read_keys(both)).caller(token)
    assert TokenVerifier(read_keys(both)).caller(sign(key, role="rider", subject="r1", lasts=HOUR)) == R1


def test_the_key_chooses_the_algorithm_and_never_the_token(tmp_path: Path) -> None:
    key, public = made(tmp_path, "RS256")
    verifier = TokenVerifier(read_keys(public))
    with pytest.raises(TokenError, match="alg"):
        verifier.caller(jwt.encode(claims(), "", algorithm="none", headers={"kid": key["kid"]}))
    # The classic: the public key, which everybody has, taken for an HMAC secret.
    (listed,) = json.loads(public.read_text())["keys"]
    modulus = base64.urlsafe_b64decode(listed["n"] + "==")
    with pytest.raises(TokenError, match="alg"):
        verifier.caller(jwt.encode(claims(), modulus, algorithm="HS256", headers={"kid": key["kid"]}))
    with pytest.raises(TokenError, match="alg"):
        verifier.caller(raw(key, claims(), algorithm="RS512"))


def test_a_token_is_verified_once_and_refused_when_it_has_expired(tmp_path: Path) -> None:
    key, public = made(tmp_path)
    now = datetime.now(UTC)
    verifier = TokenVerifier(read_keys(public), leeway_s=30, now=lambda: now)
    token = sign(key, role="rider", subject="r1", lasts=HOUR)
    assert [verifier.caller(token) for _ in range(5)] == [R1] * 5
    assert verifier.verified == 1
    now += HOUR + timedelta(seconds=20)
    assert verifier.caller(token) == R1
    now += timedelta(seconds=11)
    with pytest.raises(TokenError, match="expired at"):
        verifier.caller(token)


def test_few_tokens_are_remembered(tmp_path: Path) -> None:
    key, public = made(tmp_path)
    verifier = TokenVerifier(read_keys(public), cached_max=3)
    tokens = [sign(key, role="rider", subject=f"r{number}", lasts=HOUR) for number in range(5)]
    for token in tokens:
        verifier.caller(token)
    assert len(verifier._cached) == 3
    verifier.caller(tokens[4])
    assert verifier.verified == 5
    verifier.caller(tokens[0])
    assert verifier.verified == 6


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> TokenVerifier:
    _, public = make_keys(tmp_path_factory.mktemp("keys"))
    return TokenVerifier(read_keys(public))


PARTS = st.binary(max_size=60).map(lambda part: base64.urlsafe_b64encode(part).rstrip(b"=").decode())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["alg", "kid", "exp", "crit"]), inner),
    max_leaves=8,
).map(lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode())


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=100) | st.lists(PARTS | JSON, min_size=2, max_size=4).map(".".join))
def test_whatever_is_sent_as_a_token_is_refused(verifier: TokenVerifier, token: str) -> None:
    with pytest.raises(TokenError):
        verifier.caller(token)


def test_a_very_long_token_is_not_read(verifier: TokenVerifier) -> None:
    with pytest.raises(TokenError, match="longer than"):
        verifier.caller("a" * 5_000)


def _without(name: str) -> Callable[[Jwk], Jwk]:
    return lambda key: {field: value for field, value in key.items() if field != name}


@pytest.mark.parametrize(
    ("algorithm", "change", "reason"),
    [
        ("EdDSA", _without("kid"), "has no kid"),
        ("EdDSA", lambda key: {**key, "crv": "X25519"}, "no known kind"),
        ("EdDSA", lambda key: {**key, "kty": ["OKP"]}, "no known kind"),
        ("ES256", lambda key: {**key, "crv": "P-384"}, "no known kind"),
        ("RS256", lambda key: {**key, "alg": "HS256"}, "used with RS256 only"),
        ("RS256", lambda key: {**key, "n": key["n"][:100]}, "bits; use 2048 or more"),
        ("HS256", lambda key: {**key, "k": key["k"][:20]}, "bytes; use 32 or more"),
        ("EdDSA", lambda key: {**key, "d": "AAAA"}, "is a private one"),
        ("EdDSA", lambda key: {**key, "x": "AAAA"}, "cannot be read"),
    ],
)
def test_a_key_that_cannot_be_trusted_stops_the_start(
    tmp_path: Path, algorithm: str, change: Callable[[Jwk], Jwk], reason: str
) -> None:
    _, public = made(tmp_path, algorithm)
    (key,) = json.loads(public.read_text())["keys"]
    public.write_text(json.dumps({"keys": [change(key)]}))
    with pytest.raises(ConfigurationError, match=reason):
        read_keys(public)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"keys": 1}', '{"keys": [1]}', '{"keys": []}', "[" * 100_000])
def test_a_file_that_is_no_key_set_stops_the_start(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"BOOKING_AUTH_KEYS: .*`booking-token keys` writes one"):
        read_keys(path)


def test_two_keys_of_one_name_stop_the_start(tmp_path: Path) -> None:
    _, public = made(tmp_path)
    public.write_text(json.dumps({"keys": json.loads(public.read_text())["keys"] * 2}))
    with pytest.raises(ConfigurationError, match="two keys with the kid"):
        read_keys(public)


def test_the_command_makes_keys_and_signs_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "keys"
    main(["keys", str(folder)])
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {
        "signing-key.json": "0o600",
        "keys.json": "0o600",
    }
    capsys.readouterr()
    main(["sign", str(folder / "signing-key.json"), "rider", "r1", "--issuer", "me"])
    token = capsys.readouterr().out.strip()
    assert TokenVerifier(read_keys(folder / "keys.json"), issuer="me").caller(token) == R1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["keys", "{folder}"], "exists; name another folder, or remove it"),
        (["sign", "{folder}/none.json", "rider", "r1"], "cannot be read: No such file or directory"),
        (["sign", "{folder}/keys.json", "rider", "r1"], "cannot sign: "),
    ],
)
def test_the_command_says_in_one_sentence_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    make_keys(tmp_path)
    with pytest.raises(SystemExit) as end:
        main([argument.replace("{folder}", str(tmp_path)) for argument in arguments])
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("booking-token: ")
    assert sentence in said
    assert len(said.splitlines()) == 1
