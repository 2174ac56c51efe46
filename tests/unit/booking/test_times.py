"""Times in SQLite are the text that SQLAlchemy's own type writes, so rows of older versions sort among the new ones."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from booking.adapters.storage.tables import UtcTime
from sqlalchemy import Column, DateTime, MetaData, Table, create_engine, insert, select, text
from sqlalchemy.dialects import registry

NOON = datetime(2014, 5, 1, 12, tzinfo=UTC)
MOMENTS = [
    NOON,
    NOON + timedelta(microseconds=1),
    datetime(1970, 1, 2, tzinfo=UTC),
    datetime(2014, 5, 1, 0, 30, 0, 5, tzinfo=timezone(timedelta(hours=2))),
    datetime(2099, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-4))),
]
OURS = Table("moments", MetaData(), Column("at", UtcTime))
PLAIN = Table("moments", MetaData(), Column("at", DateTime))


@pytest.mark.parametrize("moment", MOMENTS, ids=str)
def test_sqlite_holds_what_its_own_type_would_write(moment: datetime) -> None:
    engine = create_engine("sqlite://")
    OURS.create(engine)
    with engine.begin() as connection:
        connection.execute(insert(PLAIN).values(at=moment.astimezone(UTC).replace(tzinfo=None)))
        connection.execute(insert(OURS).values(at=moment))
        connection.execute(insert(OURS).values(at=None))
        before, now, none = connection.scalars(text("SELECT at FROM moments")).all()
        assert (now, none) == (before, None)
        assert connection.scalars(select(OURS.c.at)).all() == [moment, moment, None]
        assert connection.scalars(select(OURS.c.at).where(OURS.c.at == moment)).all() == [moment, moment]
    engine.dispose()


@pytest.mark.parametrize(("dialect", "type_"), [("sqlite", "VARCHAR(26)"), ("postgresql", "TIMESTAMP WITH TIME ZONE")])
def test_the_column_has_the_type_of_its_database(dialect: str, type_: str) -> None:
    assert UtcTime().compile(dialect=registry.load(dialect)()) == type_
