"""`hailbus-broker serve`, `hailbus-broker describe`."""

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
    describe.set_defaults(run=_describe)
    return parser


def _serve(arguments: argparse.Namespace) -> int:
    # Nothing that is made until the broker serves will be garbage soon: looking for it takes a fifth of the start.
    gc.disable()
    from hailbus_broker.cli.serve import serve

    text = None
    if arguments.config is not None:
        try:
            text = Path(arguments.config).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(f"cannot read the properties file {arguments.config}: {error}; check --config") from error
    flags = {}
    if arguments.listen is not None:
        host, colon, port = arguments.listen.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65535:
            raise StartError(f"--listen {arguments.listen} is not HOST:PORT, for example 127.0.0.1:9092")
        flags["listeners"] = f"PLAINTEXT://{host}:{port}"
    if arguments.data_dir is not None:
        flags["log.dirs"] = arguments.data_dir
    return serve(
        file_text=text, environment=os.environ, settings=arguments.set, flags=flags, log_level=arguments.log_level
    )


def _describe(arguments: argparse.Namespace) -> int:
    from hailbus_broker.cli.describe import describe, describe_options

    if arguments.options:
        describe_options()
        return 0
    return describe(arguments.bootstrap, timeout_s=arguments.timeout)
