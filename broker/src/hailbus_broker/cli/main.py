"""The commands of `hailbus-broker` and their options."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path

from hailbus_broker.runtime.errors import StartError


def main() -> None:
    """The command; exit code 2 when it was called wrongly or cannot start."""
    arguments = _parser().parse_args()
    try:
        code: int = arguments.run(arguments)
    except StartError as error:
        sys.stderr.write(f"hailbus-broker: {error}\n")
        code = 2
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:
        # The reader of our output has gone, as `head` does: nothing to tell anybody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hailbus-broker", description="An event broker that speaks the Kafka protocol.", allow_abbrev=False
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser(
        "serve",
        help="run a broker until SIGTERM or Ctrl-C",
        description="Run a broker; prints bootstrap=HOST:PORT when it serves. No option is needed.",
        allow_abbrev=False,
    )
    serve.add_argument(
        "--listen", metavar="HOST:PORT", help="where to listen; port 0 takes a free one (default 127.0.0.1:9092)"
    )
    serve.add_argument("--data-dir", metavar="DIR", help="where all data lies (default hailbus-data)")
    serve.add_argument("--config", metavar="FILE", help="settings as name=value lines, with Kafka's names")
    serve.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="one setting; may be given often"
    )
    serve.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="least level that is logged (default info)",
    )
    serve.set_defaults(run=_serve)

    cluster = commands.add_parser(
        "cluster",
        help="run a cluster on this machine, each node a process",
        description="Run a cluster until SIGTERM or Ctrl-C; prints bootstrap=HOST:PORT,… when all nodes serve. Each "
        "node is broker and controller. A node that dies is reported, and not started again.",
        allow_abbrev=False,
    )
    cluster.add_argument("--nodes", metavar="N", type=int, default=3, help="how many nodes (default 3)")
    cluster.add_argument(
        "--data-dir", metavar="DIR", required=True, help="where the nodes' data lies, a folder for each"
    )
    cluster.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default="127.0.0.1:9092",
        help="where node 1 listens; the other nodes, and the controllers, have the ports behind it; port 0 takes free "
        "ones (default 127.0.0.1:9092)",
    )
    cluster.add_argument("--config", metavar="FILE", help="settings of all nodes, as for serve")
    cluster.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="one setting of all nodes; may be given often"
    )
    cluster.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="warning",
        help="least level that is logged (default warning)",
    )
    cluster.add_argument(
        "--only-prepare",
        action="store_true",
        help="make the nodes' directories and settings, and start nothing: `serve --config FILE` starts each node",
    )
    cluster.set_defaults(run=_cluster)

    formatting = commands.add_parser(
        "format",
        help="make a data directory before the first start",
        description="Make a data directory; serve does so by itself, with a new cluster id.",
        allow_abbrev=False,
    )
    formatting.add_argument("--data-dir", metavar="DIR", help="the directory (default hailbus-data)")
    formatting.add_argument("--cluster-id", metavar="ID", help="22 characters of base64 (default a new one)")
    formatting.add_argument("--config", metavar="FILE", help="settings, as for serve: node.id and log.dirs count")
    formatting.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="one setting, as for serve"
    )
    voters = formatting.add_mutually_exclusive_group()
    voters.add_argument(
        "--standalone", action="store_true", help="the first controller of a new quorum, which others join"
    )
    voters.add_argument(
        "--initial-controllers",
        metavar="LIST",
        help="the first controllers of a new quorum: ID@HOST:PORT:DIRECTORY, comma-separated, the same on each",
    )
    voters.add_argument(
        "--no-initial-controllers", action="store_true", help="a node that joins a quorum (the default)"
    )
    formatting.add_argument("--ignore-formatted", action="store_true", help="a formatted directory is left as it is")
    formatting.set_defaults(run=_format)

    dumping = commands.add_parser(
        "dump-log",
        help="print the contents of a partition's files",
        description="Show batches, index entries and states, and check them; exit code 1 when one is damaged. "
        "Records of the broker's own topics are decoded.",
        allow_abbrev=False,
    )
    dumping.add_argument("paths", metavar="PATH", nargs="+", help="a file of a partition, or a partition's folder")
    dumping.add_argument("--records", action="store_true", help="show the records of each batch, too")
    dumping.add_argument("--json", action="store_true", help="one JSON document per line")
    dumping.set_defaults(run=_dump_log)

    metadata = commands.add_parser(
        "dump-metadata",
        help="show the cluster's metadata",
        description="Show the records of the metadata log, or with --image what they add up to.",
        allow_abbrev=False,
    )
    metadata.add_argument("--data-dir", metavar="DIR", default="hailbus-data", help="(default hailbus-data)")
    metadata.add_argument("--image", action="store_true", help="topics, configs and features as they are now")
    metadata.add_argument("--json", action="store_true", help="one JSON document per line")
    metadata.set_defaults(run=_dump_metadata)

    describe = commands.add_parser(
        "describe",
        help="show what a broker is, or the options there are",
        description="Ask a broker what it is: exit code 0 when it serves. With --options: list all settings.",
        allow_abbrev=False,
    )
    describe.add_argument(
        "--bootstrap", metavar="HOST:PORT", default="127.0.0.1:9092", help="the broker to ask (default 127.0.0.1:9092)"
    )
    describe.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help="how long to wait (default 5)")
    describe.add_argument(
        "--options", action="store_true", help="list the settings that serve takes, and their defaults"
    )
    describe.add_argument(
        "--groups", action="store_true", help="groups, their states, and why they were rebalanced last"
    )
    describe.add_argument("--json", action="store_true", help="one JSON document")
    describe.set_defaults(run=_describe)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    # Nothing that is made until the broker serves will be garbage soon: looking for it takes a fifth of the start.
    gc.disable()
    from hailbus_broker.cli.serve import serve

    flags = {}
    if arguments.listen is not None:
        host, port = _address(arguments.listen)
        flags["listeners"] = f"PLAINTEXT://{host}:{port}"
    if arguments.data_dir is not None:
        flags["log.dirs"] = arguments.data_dir
    return serve(
        file_text=_properties(arguments),
        environment=os.environ,
        settings=arguments.set,
        flags=flags,
        log_level=arguments.log_level,
    )


def _cluster(arguments: argparse.Namespace) -> int:
    from hailbus_broker.cli.cluster import run_cluster

    if arguments.nodes < 1:
        raise StartError(f"--nodes {arguments.nodes}: a cluster has at least one node")
    host, port = _address(arguments.listen)
    return run_cluster(
        node_count=arguments.nodes,
        data_dir=arguments.data_dir,
        host=host,
        port=port,
        file_text=_properties(arguments),
        environment=os.environ,
        settings=arguments.set,
        log_level=arguments.log_level,
        only_prepares=arguments.only_prepare,
    )


def _address(text: str) -> tuple[str, int]:
    """`HOST:PORT` → host and port.

    Raises:
        StartError: The text is something else.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise StartError(f"--listen {text} is not HOST:PORT, for example 127.0.0.1:9092")
    return host, int(port)


def _properties(arguments: argparse.Namespace) -> str | None:
    if arguments.config is None:
        return None
    try:
        return Path(arguments.config).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"cannot read the properties file {arguments.config}: {error}; check --config") from error


def _format(arguments: argparse.Namespace) -> int:
    from hailbus_broker.cli.format import format_directory

    return format_directory(
        file_text=_properties(arguments),
        environment=os.environ,
        settings=arguments.set,
        flags={} if arguments.data_dir is None else {"log.dirs": arguments.data_dir},
        cluster_id=arguments.cluster_id,
        ignores_formatted=arguments.ignore_formatted,
        is_alone=arguments.standalone,
        initial_controllers=arguments.initial_controllers,
    )


def _dump_log(arguments: argparse.Namespace) -> int:
    from hailbus_broker.cli.dump import dump_log

    return dump_log(arguments.paths, records=arguments.records, as_json=arguments.json)


def _dump_metadata(arguments: argparse.Namespace) -> int:
    from hailbus_broker.cli.dump import dump_metadata

    return dump_metadata(arguments.data_dir, shows_image=arguments.image, as_json=arguments.json)


def _describe(arguments: argparse.Namespace) -> int:
    from hailbus_broker.cli.describe import describe, describe_options

    if arguments.options:
        describe_options()
        return 0
    return describe(
        arguments.bootstrap, timeout_s=arguments.timeout, shows_groups=arguments.groups, as_json=arguments.json
    )
