"""A fault in the lake: a row of bronze that is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hailbus_demo.sabotage.deeds.deed import RIDES, Deed

BRONZE = "bronze.events"
LAKE_CATALOG = "lake"
COMMIT_ATTEMPTS = 20
"""Spark may commit at any moment; the slower of two commits has to look at the table again."""


def delete_lake_row(lake_dir: Path) -> Deed | None:
    """Delete one row of bronze: the one in the middle of the partition of rides.v1 with the most rows."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
    from sqlalchemy.exc import SQLAlchemyError

    database = (lake_dir / "catalog.db").absolute()
    if not database.is_file():
        return None
    for attempt in range(COMMIT_ATTEMPTS):
        try:
            with SqlCatalog(
                LAKE_CATALOG,
                uri=f"sqlite:///{database}",
                warehouse=(lake_dir / "warehouse").absolute().as_uri(),
                init_catalog_tables="false",
            ) as catalog:
                table = catalog.load_table(BRONZE)
                rows = (
                    table.scan(row_filter=_equal(topic=RIDES), selected_fields=("partition", "offset"))
                    .to_arrow()
                    .to_pydict()
                )
                places = sorted(zip(rows["partition"], rows["offset"], strict=True))
                if not places:
                    return None
                partition, offset = places[len(places) // 2]
                table.delete(_equal(topic=RIDES, partition=partition, offset=offset))
        except (NoSuchTableError, SQLAlchemyError):
            return None
        except CommitFailedException:
            if attempt == COMMIT_ATTEMPTS - 1:
                raise
            continue
        return Deed(
            fault="lake-row-missing",
            sentence=f"the row of {RIDES}-{partition} offset {offset} is gone from the lake's table {BRONZE}",
            topic=RIDES,
            partition=partition,
            offset=offset,
            id="",
        )
    return None


def _equal(**values: str | int) -> Any:  # Any: pyiceberg's expression, whose types do not know its own constructor
    """Return the rows in which every named column has its value, as an Iceberg expression."""
    from pyiceberg.expressions import AlwaysTrue, And, EqualTo

    equal: Any = EqualTo
    found: Any = AlwaysTrue()
    for column, value in values.items():
        found = And(found, equal(column, value))
    return found
