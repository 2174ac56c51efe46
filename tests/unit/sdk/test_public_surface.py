"""What `import hailbus` offers, and what it does not load before someone uses it."""

import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

hailbus: Any = importlib.import_module("hailbus")  # type checkers see the stub, these tests what runs


def test_every_public_name_is_importable_and_comes_from_the_module_that_is_named() -> None:
    assert sorted(hailbus.__all__) == hailbus.__all__
    assert set(hailbus._MODULES) == set(hailbus.__all__)
    for name, module in hailbus._MODULES.items():
        assert getattr(hailbus, name) is getattr(importlib.import_module(module), name), name
    assert set(hailbus.__all__) <= set(dir(hailbus))


def test_no_public_name_is_also_a_module_which_its_import_would_put_in_its_place() -> None:
    assert not [name for name in hailbus.__all__ if importlib.util.find_spec(f"hailbus.{name}")]


def test_each_name_is_written_once_in_a_stub_that_the_package_contains() -> None:
    stub = Path(hailbus.__file__).with_name("__init__.pyi").read_text()
    for name in hailbus.__all__:
        assert stub.count(f" {name} as {name}") == 1, name
    assert (Path(hailbus.__file__).with_name("py.typed")).is_file()


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        hailbus.Nothing  # noqa: B018 looking it up is the test


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import hailbus", {"sqlalchemy", "aiokafka", "pydantic", "fastapi"}),
        (
            "from hailbus import Event, Topic, Catalogue",
            {"sqlalchemy", "aiokafka", "fastapi", "uvicorn", "asyncio", "httpx", "typer", "hailbus.cli"},
        ),
        ("from hailbus import Service, Publisher, AtLeastOnce", {"sqlalchemy", "aiokafka", "fastapi", "uvicorn"}),
        ("from hailbus import KafkaBus", {"sqlalchemy", "fastapi", "uvicorn"}),
        ("import hailbus.fastapi", {"sqlalchemy", "aiokafka"}),
    ],
)
def test_what_costs_much_is_loaded_when_it_is_used(statement: str, absent: set[str]) -> None:
    program = f"import sys; {statement}; print(*({absent!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
