"""What a database URL needs, said in one sentence."""

import sys

import pytest
from hailbus import ConfigurationError
from hailbus.database import create_engine


def test_postgresql_without_its_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)  # as if it were not installed
    with pytest.raises(ConfigurationError) as refused:
        create_engine("postgresql://ada@127.0.0.1/till")
    assert str(refused.value) == (
        "a postgresql:// URL needs the driver asyncpg; install it: pip install 'hailbus[postgres]'"
    )


def test_a_search_path_is_no_part_of_the_databases_address() -> None:
    engine = create_engine("postgresql://ada@127.0.0.1/till?search_path=east")
    assert engine.url.render_as_string() == "postgresql+asyncpg://ada@127.0.0.1/till"
