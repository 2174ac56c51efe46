"""The lake without Spark and without a JVM: tables by pyiceberg, SQL by duckdb over Arrow. Read only."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from analytics_spark.errors import LakeError, LakeMissingError
from analytics_spark.session import CATALOG, LakeLayout

__all__ = [
    "QueryRefusedError",
    "TableInfo",
    "arrow_dataset",
    "load_table",
    "load_tables",
    "query",
    "table_infos",
    "table_names",
]


class QueryRefusedError(LakeError):
    """The query is no query, names what is not there, or wants to write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """One table at its newest snapshot."""

    name: str
    rows: int
    files: int
    size_bytes: int
    snapshots: int
    columns: tuple[str, ...]


def _catalog(lake_dir: Path) -> Any:  # pyiceberg's catalog, imported late: it takes half a second
    layout = LakeLayout(Path(lake_dir).expanduser().absolute())
    if not layout.catalog_db.is_file():
        raise LakeMissingError(
            f"there is no lake at {layout.root}; run lake-sink, or name its folder with --dir or LAKE_DIR"
        )
    from pyiceberg.catalog.sql import SqlCatalog

    # init_catalog_tables would write into a catalog that Spark is just creating.
    return SqlCatalog(CATALOG, uri=layout.catalog_uri, warehouse=layout.warehouse.as_uri(), init_catalog_tables="false")


def table_names(lake_dir: Path) -> tuple[str, ...]:
    """Every table as `namespace.table`, sorted.

    Raises:
        LakeMissingError: There is no lake in this folder.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with _catalog(lake_dir) as catalog:
            names = [
                ".".join(identifier)
                for namespace in catalog.list_namespaces()
                for identifier in catalog.list_tables(namespace)
            ]
    except SQLAlchemyError as error:
        raise LakeMissingError(
            f"the catalog of {lake_dir} has no tables yet; wait for lake-sink's first batch"
        ) from error
    return tuple(sorted(names))


def load_table(lake_dir: Path, name: str) -> Any:
    """One table, at its newest snapshot.

    Raises:
        LakeMissingError: No lake, or no such table.
    """
    names = table_names(lake_dir)
    if name not in names:
        raise LakeMissingError(f"there is no table {name!r}; the lake has {', '.join(names) or 'none yet'}")
    with _catalog(lake_dir) as catalog:
        return catalog.load_table(name)


def load_tables(lake_dir: Path) -> dict[str, Any]:
    """Every table by its name, each at its newest snapshot. Tables of later layers are opened first.

    So each layer's source has all rows that the layer was made from, though the lake is written meanwhile.

    Raises:
        LakeMissingError: There is no lake, or it has no bronze table yet.
    """
    names = table_names(lake_dir)
    if "bronze.events" not in names:
        raise LakeMissingError(
            f"the lake at {lake_dir} has no table bronze.events yet; wait for lake-sink's first batch"
        )
    layers = ("gold", "silver", "bronze")
    ordered = sorted(names, key=lambda name: layers.index(name.partition(".")[0]))
    with _catalog(lake_dir) as catalog:
        return {name: catalog.load_table(name) for name in ordered}


def table_infos(lake_dir: Path) -> tuple[TableInfo, ...]:
    """What `lake tables` shows."""
    infos = []
    for name in table_names(lake_dir):
        table = load_table(lake_dir, name)
        snapshot = table.current_snapshot()
        summary: Mapping[str, str] = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
        infos.append(
            TableInfo(
                name=name,
                rows=int(summary.get("total-records", 0)),
                files=int(summary.get("total-data-files", 0)),
                size_bytes=int(summary.get("total-files-size", 0)),
                snapshots=len(table.metadata.snapshots),
                columns=tuple(field.name for field in table.schema().fields),
            )
        )
    return tuple(infos)


def arrow_dataset(table: Any) -> Any:
    """The files of a table's newest snapshot as one Arrow dataset: filters are pushed down, rows are streamed.

    Exactly the snapshot's files, not whatever lies in the folder: files of cut batches and compacted ones are left out.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    schema = pa.schema([_plain(field) for field in schema_to_pyarrow(table.schema(), include_field_ids=False)])
    paths: list[str] = []
    for task in table.scan().plan_files():
        if task.delete_files:
            # The sink only appends and replaces whole files; somebody else deleted rows, and only pyiceberg applies
            # that.
            return ds.dataset(table.scan().to_arrow())
        paths.append(_local(task.file.file_path))
    if not paths:
        return ds.dataset(schema.empty_table())
    return ds.dataset(sorted(paths), schema=schema, format="parquet")


def _plain(field: Any) -> Any:
    """Iceberg's large strings and binaries as Parquet files hold them: the same data, half the offsets."""
    import pyarrow as pa

    def plain(kind: Any) -> Any:
        if pa.types.is_large_string(kind):
            return pa.string()
        if pa.types.is_large_binary(kind):
            return pa.binary()
        if pa.types.is_large_list(kind) or pa.types.is_list(kind):
            return pa.list_(pa.field(kind.value_field.name, plain(kind.value_type), nullable=True))
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(part.name, plain(part.type), nullable=True) for part in kind])
        if pa.types.is_map(kind):
            return pa.map_(plain(kind.key_type), plain(kind.item_type))
        return kind

    return pa.field(field.name, plain(field.type), nullable=True)


def _local(path: str) -> str:
    return unquote(urlsplit(path).path) if path.startswith("file:") else path


def connect(lake_dir: Path, names: tuple[str, ...]) -> Any:
    """A duckdb connection in memory in which these tables can be read under their names, and nothing outside it."""
    import duckdb

    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone='UTC'")
    for name in names:
        namespace, _, short = name.partition(".")
        alias = f"{namespace}__{short}"
        connection.register(alias, arrow_dataset(load_table(lake_dir, name)))
        connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{namespace}"')
        connection.execute(f'CREATE VIEW "{namespace}"."{short}" AS SELECT * FROM "{alias}"')  # noqa: S608 our names
    return connection


def query(lake_dir: Path, sql: str) -> Any:
    """The answer of one SELECT, as an Arrow table.

    Raises:
        QueryRefusedError: Not one single query, or duckdb refuses it.
        LakeMissingError: No lake, or not the table.
    """
    import duckdb

    try:
        statements = duckdb.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryRefusedError(f"the query does not parse: {_first_line(error)}") from error
    if len(statements) != 1 or statements[0].type not in {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}:
        raise QueryRefusedError("the lake is read only here: give one SELECT")
    existing = table_names(lake_dir)
    named = _tables_in(sql, existing)
    connection = connect(lake_dir, named)
    try:
        # No file of this machine can be read or written by the query, and no extension loaded.
        connection.execute("SET enable_external_access=false")
        connection.execute("SET lock_configuration=true")
        return connection.sql(sql).to_arrow_table()
    except duckdb.Error as error:
        hint = "" if named else f"; tables are {', '.join(existing) or 'none yet'}"
        raise QueryRefusedError(f"the query fails: {_first_line(error)}{hint}") from error
    finally:
        connection.close()


def _tables_in(sql: str, existing: tuple[str, ...]) -> tuple[str, ...]:
    """The lake's tables that a query may mean: only they are opened."""
    lowered = sql.lower().replace('"', "")
    return tuple(name for name in existing if name in lowered)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def newest_rows(lake_dir: Path, name: str, *, limit: int) -> Any:
    """Up to `limit` rows of a table, of its newest ones, in the order in which they came."""
    table = load_table(lake_dir, name)
    names = [field.name for field in table.schema().fields]
    order = next((column for column in ("ingested_at", "window_start") if column in names), None)
    connection = connect(lake_dir, (name,))
    try:
        newest = connection.sql(f"FROM {name}")
        if order is None:
            return newest.limit(limit).to_arrow_table()
        return newest.order(f"{order} DESC").limit(limit).order(order).to_arrow_table()
    finally:
        connection.close()
