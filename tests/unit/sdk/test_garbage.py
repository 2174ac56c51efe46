"""A process that serves keeps what it has imported from the garbage collector."""

import subprocess
import sys
from pathlib import Path

import pytest

PROCESS = """
import gc
from hailbus.process import run_process
from pydantic_settings import BaseSettings, SettingsConfigDict

class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="TILL_")
    log_level: str = "error"

async def serve(settings):
    print(any(found is Settings for found in gc.get_objects()), gc.get_threshold())

run_process("till", Settings, serve, [])
"""
APP = """
import contextlib, gc, os, signal
from fastapi import FastAPI

class Imported: ...

@contextlib.asynccontextmanager
async def lifespan(_app):
    print(any(found is Imported for found in gc.get_objects()), gc.get_threshold())
    os.kill(os.getpid(), signal.SIGTERM)
    yield

app = FastAPI(lifespan=lifespan)
"""


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (PROCESS, ["till.py"]),
        (APP, ["-m", "hailbus._command", "run", "till:app", "--listen", "127.0.0.1:0"]),
    ],
    ids=["run_process", "hailbus run"],
)
def test_what_is_imported_is_not_collected_again(file: str, words: list[str], tmp_path: Path) -> None:
    (tmp_path / "till.py").write_text(file)
    ended = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "False (10000, 10, 10)" in ended.stdout.splitlines(), ended.stdout + ended.stderr
