"""ZkMigrationStateRecord. Derived by `derive-protocol`: not edited by hand."""

from hailbus_broker.protocol.schema import Message, int8


class ZkMigrationStateRecord(Message, versions="0", flexible="0+", api_key=21):
    """ZkMigrationStateRecord, metadata, versions 0, flexible 0+."""

    zk_migration_state: int = int8("0+")
