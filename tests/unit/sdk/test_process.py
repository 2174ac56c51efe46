"""Settings from the environment, and the sentences of a process that cannot start."""

import errno
import os
from pathlib import Path
from typing import Literal

import pytest
from hailbus import BrokerUnreachableError, ConfigurationError
from hailbus.process import run_process
from hailbus.settings import read_settings
from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict
from sqlalchemy.exc import OperationalError


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TILL_", frozen=True, extra="forbid", env_ignore_empty=True)

    bootstrap_servers: str = Field(min_length=1)
    database_url: SecretStr = SecretStr("sqlite:///till.db")
    listen: str = "127.0.0.1:0"
    retries: int | None = Field(default=None, ge=0)
    log_level: Literal["debug", "info", "warning", "error"] = "error"


@pytest.fixture(autouse=True)
def collector_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector of this process stays as it is."""
    monkeypatch.setattr("hailbus.process.freeze_imports", lambda: None)


def test_settings_are_read_by_prefix_and_parsed() -> None:
    found = read_settings(Settings, {"TILL_BOOTSTRAP_SERVERS": "a:1", "till_retries": "3", "OTHER": "x"})
    assert (found.bootstrap_servers, found.retries) == ("a:1", 3)
    assert read_settings(Settings, {"TILL_BOOTSTRAP_SERVERS": "a:1", "TILL_RETRIES": ""}).retries is None


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"TILL_BOOTSTRAP": "a:1"}, "unknown setting TILL_BOOTSTRAP; known are TILL_BOOTSTRAP_SERVERS, "),
        ({}, "TILL_BOOTSTRAP_SERVERS: Field required; set it in the environment"),
        ({"TILL_BOOTSTRAP_SERVERS": "a:1", "TILL_RETRIES": "-1"}, "TILL_RETRIES: Input should be greater than"),
    ],
)
def test_what_is_misspelt_missing_or_wrong_is_named(environment: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        read_settings(Settings, environment)
    assert str(refused.value).startswith(sentence)


def test_a_secret_is_read_from_the_file_that_a_variable_names(tmp_path: Path) -> None:
    secret = tmp_path / "url"
    secret.write_text("postgresql://till:s3cret@db/till\n")
    needed = {"TILL_BOOTSTRAP_SERVERS": "a:1"}
    found = read_settings(Settings, needed | {"TILL_DATABASE_URL_FILE": str(secret)})
    assert found.database_url.get_secret_value() == "postgresql://till:s3cret@db/till"
    with pytest.raises(ConfigurationError) as refused:
        read_settings(Settings, needed | {"TILL_DATABASE_URL_FILE": str(secret), "TILL_DATABASE_URL": "sqlite://"})
    assert str(refused.value) == "TILL_DATABASE_URL and TILL_DATABASE_URL_FILE are both set; unset one of them"
    with pytest.raises(ConfigurationError) as missing:
        read_settings(Settings, needed | {"TILL_DATABASE_URL_FILE": str(tmp_path / "none")})
    assert str(missing.value) == (
        f"TILL_DATABASE_URL_FILE: {tmp_path / 'none'} cannot be read: No such file or directory; "
        "name a readable file that holds TILL_DATABASE_URL"
    )
    with pytest.raises(ConfigurationError, match="unknown setting TILL_DATABASE_FILE"):
        read_settings(Settings, needed | {"TILL_DATABASE_FILE": str(secret)})


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (ConfigurationError("two events claim one type"), "till: two events claim one type"),
        (BrokerUnreachableError(bootstrap="a:1", waited_s=4), "till: no Kafka broker answers at a:1"),
        (
            OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)),
            "till: cannot listen at 127.0.0.1:0: Address already in use; set TILL_LISTEN to a free address",
        ),
        (
            OperationalError("SELECT 1", {}, Exception("no such host")),
            "till: the database cannot be opened: no such host; check TILL_DATABASE_URL",
        ),
    ],
)
def test_a_process_that_cannot_start_says_why_in_one_sentence(
    failure: Exception, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILL_BOOTSTRAP_SERVERS", "a:1")
    monkeypatch.setattr("hailbus.process.log_to_stderr", lambda level: None)  # the test's own log stays as it is

    async def serve(settings: Settings) -> None:
        assert settings.bootstrap_servers == "a:1"
        raise failure

    with pytest.raises(SystemExit) as ended:
        run_process("till", Settings, serve, [])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(sentence)


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILL_BOOTSTRAP_SERVERS", "a:1")
    monkeypatch.setattr("hailbus.process.log_to_stderr", lambda level: None)

    async def serve(settings: Settings) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_process("till", Settings, serve, [])


class Described(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TILL_")

    servers: str = Field(description="HOST:PORT of the cluster")
    url: SecretStr = Field(default=SecretStr("sqlite:///till.db"), description="its database")
    region: str | None = None
    sources: tuple[str, ...] = Field(default_factory=lambda: ("a", "b"))


@pytest.mark.parametrize(
    ("arguments", "code", "where"), [(["--help"], 0, "out"), (["-h"], 0, "out"), (["--port", "1"], 2, "err")]
)
def test_help_lists_the_settings(
    arguments: list[str], code: int, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def serve(settings: Described) -> None:
        raise AssertionError("it is not run")

    with pytest.raises(SystemExit) as ended:
        run_process("till", Described, serve, arguments)
    assert ended.value.code == code
    said = getattr(capsys.readouterr(), where)
    assert said.startswith("usage: till" if code == 0 else "till: unknown argument '--port'\nusage: till")
    assert said.splitlines()[-4:] == [
        "  TILL_SERVERS  required           HOST:PORT of the cluster",
        "  TILL_URL      sqlite:///till.db  its database",
        "  TILL_REGION   empty",
        "  TILL_SOURCES  ('a', 'b')",
    ]
