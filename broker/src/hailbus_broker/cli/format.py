"""`hailbus-broker format`: make a data directory before the first start, to choose whose it is."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING
from uuid import UUID

from hailbus_broker import config
from hailbus_broker.log import LogDirectory, MetaProperties, StorageError, decode_uuid, encode_uuid
from hailbus_broker.log.log_directory import META_PROPERTIES
from hailbus_broker.runtime.disk import RealDisk
from hailbus_broker.runtime.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def format_directory(
    *,
    file_text: str | None,
    environment: Mapping[str, str],
    settings: Sequence[str],
    flags: Mapping[str, str],
    cluster_id: str | None,
    ignores_formatted: bool,
) -> int:
    """Write meta.properties into the data directory.

    Raises:
        StartError: It has them already, or the cluster id is none.
    """
    options = config.load(file_text=file_text, environment=environment, settings=settings, flags=flags)
    path, disk = options["log.dirs"], RealDisk()
    if disk.exists(f"{path}/{META_PROPERTIES}"):
        if ignores_formatted:
            sys.stdout.write(f"{path} is formatted already.\n")
            return 0
        raise StartError(
            f"{path} is formatted already; --ignore-formatted accepts that, another --data-dir is a new one"
        )
    rng = random.SystemRandom()
    if cluster_id is None:
        cluster_id = encode_uuid(UUID(bytes=rng.randbytes(16), version=4))
    elif not _is_uuid(cluster_id):
        raise StartError(f"--cluster-id {cluster_id} is not 22 characters of base64; without it a new one is made")
    node_id = options["node.id"] if "node.id" in options.given else options["broker.id"]
    meta = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=UUID(bytes=rng.randbytes(16), version=4))
    try:
        LogDirectory.open(disk, path, new_meta=meta)
    except StorageError as error:
        raise StartError(f"cannot format {path}: {error}") from error
    sys.stdout.write(f"cluster_id={cluster_id}\nnode_id={node_id}\ndata_dir={path}\n")
    return 0


def _is_uuid(text: str) -> bool:
    try:
        return encode_uuid(decode_uuid(text)) == text
    except ValueError:
        return False
