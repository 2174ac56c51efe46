"""`demo`: the whole city by one command, and its parts for systems that already run."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from typer._click.exceptions import ClickException, NoArgsIsHelpError  # typer exports no other name of them

from hailbus_demo.errors import RunFailedError, UsageError
from hailbus_demo.options import (
    Outage,
    RideOptions,
    parse_address,
    parse_duration,
    parse_period,
    parse_speed,
)
from hailbus_demo.sabotage.faults import FAULTS, require_possible

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RidesOption = Annotated[
    Path | None,
    typer.Option(
        "--rides",
        help="Recorded rides: a .parquet or .csv file, or a folder of them, in this project's schema or the TLC's. "
        "Without it the built-in simulator makes riders.",
        show_default=False,
    ),
]
DayOption = Annotated[str | None, typer.Option("--day", help="Only this day, such as 2014-05-01.", show_default=False)]
FromOption = Annotated[
    str | None,
    typer.Option("--from", help="Only rides from this local time on; where the simulator starts.", show_default=False),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", help="Only rides before this local time.", show_default=False)
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="End after so many rides were asked for.", show_default=False)
]
DurationOption = Annotated[
    str | None,
    typer.Option("--duration", help="End after so long on the clock on the wall: 90s, 5m, 1h.", show_default=False),
]
SpeedOption = Annotated[
    str, typer.Option("--speed", help="Event time: so many times real time, or [bold]max[/] for as fast as it goes.")
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same riders, drivers and plans.")]
RateOption = Annotated[
    float | None,
    typer.Option(
        "--rate",
        min=0.01,
        help="Simulator: riders who ask per minute of event time, averaged over the week. As recorded: 17.",
        show_default=False,
    ),
]
CellsOption = Annotated[
    int | None,
    typer.Option("--cells", min=1, help="Simulator: how many cells riders come from, busiest first; as recorded: 710."),
]
SupplyOption = Annotated[
    float, typer.Option("--supply", min=0.1, help="Drivers online per ride under way; less makes prices rise.")
]
LocationsOption = Annotated[
    float | None,
    typer.Option(
        "--location-every",
        min=1.0,
        help="Event seconds between two positions of a driver; 4, or 25 (free drivers only) when event time flies.",
        show_default=False,
    ),
]
InFlightOption = Annotated[int, typer.Option("--in-flight", min=1, max=1000, help="Requests under way at a time.")]
DataDirOption = Annotated[
    Path, typer.Option("--data-dir", help="Where the broker, the services and the lake keep data.")
]
SummaryOption = Annotated[
    Path | None,
    typer.Option(
        "--summary",
        help='Write the ledger and all figures as JSON, with "balanced": true or false.',
        show_default=False,
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap",
        help="Use this Kafka-protocol cluster, HOST:PORT, in place of the in-house broker.",
        show_default=False,
    ),
]
CatchUpOption = Annotated[
    float, typer.Option("--catch-up", min=1, help="Seconds that readers may go without progress before the ledger.")
]

BROKER_COUNTS = (1, 3, 5)

RunningBootstrap = Annotated[str, typer.Option("--bootstrap", help="The cluster of the running system, HOST:PORT.")]
BookingUrl = Annotated[str, typer.Option("--booking-url", help="Booking's address, http://HOST:PORT.")]
BookOption = Annotated[
    Path | None, typer.Option("--book", help="File of the replay's book: ride ids and how each ended.")
]


@app.callback(invoke_without_command=True)
def run(
    context: typer.Context,
    *,
    rides: RidesOption = None,
    day: DayOption = None,
    first: FromOption = None,
    until: UntilOption = None,
    limit: LimitOption = None,
    duration: DurationOption = None,
    speed: SpeedOption = "30",
    seed: SeedOption = 1,
    rate: RateOption = None,
    cells: CellsOption = None,
    supply: SupplyOption = 1.3,
    location_every: LocationsOption = None,
    in_flight: InFlightOption = 128,
    data_dir: DataDirOption = Path(".hailbus"),
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what earlier runs left in the data directory.")
    ] = False,
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65_535, help="The broker's port; a free one without it.")
    ] = None,
    dashboard_port: Annotated[
        int | None,
        typer.Option("--dashboard-port", min=1, max=65_535, help="The dashboard's port; a free one without it."),
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(
            "--brokers",
            help="So many in-house brokers: 1, or a cluster of 3 or 5 with each record on three of them.",
        ),
    ] = 1,
    regions: Annotated[
        int,
        typer.Option(
            "--regions",
            min=1,
            max=4,
            help="So many booking processes, each for a part of the city, on one PostgreSQL and behind one router.",
        ),
    ] = 1,
    bootstrap: BootstrapOption = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="Leave out Spark and the lake.")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the dashboard in a browser.")] = False,
    exit_when_done: Annotated[
        bool, typer.Option("--exit-when-done", help="End after the ledger instead of keeping the dashboard open.")
    ] = False,
    summary: SummaryOption = None,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos",
            help="Kill broker, booking, payment, payment provider, surge, recommender and lake once each with SIGKILL; "
            "of several brokers the leader of rides.v1, the active controller and a group coordinator; of several "
            "regions each, and the router.",
        ),
    ] = False,
    kills: Annotated[
        int | None,
        typer.Option(
            "--kills",
            min=1,
            max=1000,
            help="With --chaos: so many kills of random processes at random moments, also while others are not back, "
            "and outages of the payment provider. [bold]--seed[/] draws the plan, which is printed.",
            show_default=False,
        ),
    ] = None,
    sabotage: Annotated[
        str | None,
        typer.Option(
            "--sabotage",
            help="Do one fault at half of the run, to see the ledger find it; [bold]list[/] prints the faults.",
            show_default=False,
        ),
    ] = None,
    declines: Annotated[
        float,
        typer.Option(
            "--declines", min=0, max=100, help="So many of a hundred payments are declined by the payment provider."
        ),
    ] = 3.0,
    outage: Annotated[
        Outage | None,
        typer.Option(
            "--outage",
            help="Have the payment provider be away, in this way, for a third of the run.",
            show_default=False,
        ),
    ] = None,
    catch_up: CatchUpOption = 300.0,
) -> None:
    """Run the whole city: broker, services, lake and dashboard; rides through them; and a ledger that must balance.

    Exit code 0: balanced. 1: the accounts disagree, or the run failed. 2: the command line needs a change.
    """
    if context.invoked_subcommand is not None:
        return
    if sabotage == "list":
        print("\n".join(FAULTS))
        return
    fault = None
    if sabotage is not None:
        fault = require_possible(sabotage, in_house=bootstrap is None, brokers=brokers, spark=not no_spark, chaos=chaos)
    if outage is not None and (chaos or sabotage is not None):
        raise UsageError("--outage goes neither with --chaos nor with --sabotage: leave one out")
    if kills is not None and not chaos:
        raise UsageError("--kills goes with --chaos: add it, or leave --kills out")
    if regions > 1 and sabotage is not None:
        raise UsageError("--regions does not go with --sabotage, whose faults know one booking: leave one out")
    if brokers not in BROKER_COUNTS:
        raise UsageError(f"--brokers {brokers}: choose 1, 3 or 5, so that a majority survives the death of one")
    if bootstrap is not None:
        parse_address(bootstrap.split(",")[0], option="--bootstrap")
        if brokers != 1:
            raise UsageError("--brokers counts in-house brokers: leave it out with --bootstrap")
        if port is not None:
            raise UsageError("--port is the in-house broker's: leave it out with --bootstrap")
    ride_options = _rides(
        rides, day, first, until, limit, duration, speed, seed, rate, cells, supply, location_every, in_flight
    )
    if kills is not None and not ride_options.is_bounded:
        raise UsageError(
            "--kills draws moments of a run whose end is known: give --limit, --duration, --day, or --from and --until"
        )
    if rides is not None and not rides.exists():
        raise UsageError(f"{rides} does not exist: name a file or folder with recorded rides")
    from hailbus_demo.run import RunOptions, run_demo  # slow to import, and not needed to refuse

    options = RunOptions(
        rides=ride_options,
        data_dir=data_dir,
        fresh=fresh,
        port=port,
        brokers=brokers,
        bootstrap=bootstrap,
        spark=not no_spark,
        browser=not no_browser,
        exit_when_done=exit_when_done,
        summary=summary,
        chaos=chaos,
        kills=kills,
        sabotage=fault,
        catch_up_s=catch_up,
        declines_percent=declines,
        outage=outage,
        dashboard_port=dashboard_port,
        regions=regions,
    )
    raise typer.Exit(_run_async(run_demo(options, _console())))


@app.command()
def replay(
    *,
    bootstrap: RunningBootstrap,
    booking_url: BookingUrl,
    booking_key: Annotated[
        Path | None,
        typer.Option("--booking-key", help="The key that signs tokens for booking; without it none are sent."),
    ] = None,
    recommender_url: Annotated[
        str | None, typer.Option("--recommender-url", help="The recommender's address; without it nobody asks it.")
    ] = None,
    rides: RidesOption = None,
    day: DayOption = None,
    first: FromOption = None,
    until: UntilOption = None,
    limit: LimitOption = None,
    duration: DurationOption = None,
    speed: SpeedOption = "30",
    seed: SeedOption = 1,
    rate: RateOption = None,
    cells: CellsOption = None,
    supply: SupplyOption = 1.3,
    location_every: LocationsOption = None,
    in_flight: InFlightOption = 128,
    data_dir: DataDirOption = Path(".hailbus"),
    book: BookOption = None,
    run_name: Annotated[
        str | None,
        typer.Option("--run", help="Name of this run in its idempotency keys; the same name finds the same answers."),
    ] = None,
) -> None:
    """Play rides against a system that already runs, such as docker compose's, and keep a book of them."""
    from hailbus_demo.remote import play_against

    options = _rides(
        rides, day, first, until, limit, duration, speed, seed, rate, cells, supply, location_every, in_flight
    )
    parse_address(bootstrap.split(",")[0], option="--bootstrap")
    work = play_against(
        options,
        bootstrap=bootstrap,
        booking_url=booking_url,
        booking_key=booking_key,
        recommender_url=recommender_url,
        data_dir=data_dir,
        book_path=book or data_dir / "book.jsonl",
        run_name=run_name,
        console=_console(),
    )
    raise typer.Exit(_run_async(work))


@app.command()
def provision(*, bootstrap: RunningBootstrap) -> None:
    """Create the topics of the example on a cluster, those that are missing."""
    from hailbus_demo.remote import provision as make

    parse_address(bootstrap.split(",")[0], option="--bootstrap")
    made = _run_async(make(bootstrap))
    print(f"{made} topics created" if made else "all topics were there")


@app.command()
def ledger(
    *,
    bootstrap: RunningBootstrap,
    database: Annotated[
        list[str] | None,
        typer.Option(
            "--database",
            help="NAME=URL of a service's database, such as booking=postgresql+asyncpg://USER:PASSWORD@HOST/NAME; "
            "names: booking, payment, provider, surge, recommender, logger. Give the option once for each.",
        ),
    ] = None,
    booking_region: Annotated[
        list[str] | None,
        typer.Option(
            "--booking-region",
            help="A region of booking. Give the option once for each; booking's database URL then ends with "
            "?search_path=booking_regions.",
        ),
    ] = None,
    lake_dir: Annotated[Path | None, typer.Option("--lake-dir", help="The lake's folder; without it no lake.")] = None,
    lake_report: Annotated[
        Path | None,
        typer.Option(
            "--lake-report", help="What `lake verify --json` printed, where the lake's folder is out of reach."
        ),
    ] = None,
    journal: Annotated[
        Path | None,
        typer.Option("--journal", help="The file that the event logger writes; without it, it is not compared."),
    ] = None,
    poison: Annotated[
        Path | None,
        typer.Option("--poison", help="The file in which `demo` notes the damaged copies that clicks wrote."),
    ] = None,
    book: BookOption = None,
    catch_up: CatchUpOption = 300.0,
    summary: SummaryOption = None,
) -> None:
    """Draw up the ledger of a system that already runs. Exit code 0: balanced; 1: something disagrees."""
    from hailbus_demo.ledger.gather import read_lake_report
    from hailbus_demo.remote import audit
    from hailbus_demo.services import DATABASES

    parse_address(bootstrap.split(",")[0], option="--bootstrap")
    if book is not None and not book.is_file():
        raise UsageError(f"--book {book} does not exist: name the file that `demo replay` wrote, or leave it out")
    if lake_dir is not None and not lake_dir.is_dir():
        raise UsageError(f"--lake-dir {lake_dir} does not exist: name the lake's folder, or leave it out")
    report = None
    if lake_report is not None:
        if lake_dir is not None:
            raise UsageError("--lake-report and --lake-dir name the same thing twice: leave one out")
        try:
            report = read_lake_report(lake_report.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(
                f"--lake-report {lake_report} holds no output of `lake verify --json`: write it anew"
            ) from None
    if journal is not None and not journal.is_file():
        raise UsageError(f"--journal {journal} does not exist: name the event logger's file, or leave it out")
    if poison is not None and not poison.is_file():
        raise UsageError(
            f"--poison {poison} does not exist: name `poison.jsonl` of the data directory, or leave it out"
        )
    databases = {}
    for entry in database or []:
        name, equals, url = entry.partition("=")
        if not equals or name not in DATABASES:
            raise UsageError(f"--database {name}: write it as NAME=URL with NAME one of {', '.join(DATABASES)}")
        databases[name] = url
    work = audit(
        bootstrap=bootstrap,
        databases=databases,
        booking_regions=booking_region or (),
        lake_dir=lake_dir,
        lake_report=report,
        journal=journal,
        poison_path=poison,
        book_path=book,
        deadline_s=catch_up,
        summary=summary,
        console=_console(),
    )
    raise typer.Exit(_run_async(work))


def _rides(
    rides: Path | None,
    day: str | None,
    first: str | None,
    until: str | None,
    limit: int | None,
    duration: str | None,
    speed: str,
    seed: int,
    rate: float | None,
    cells: int | None,
    supply: float,
    location_every: float | None,
    in_flight: int,
) -> RideOptions:
    first_ms, until_ms = parse_period(day, first, until)
    return RideOptions(
        rides=rides,
        first_ms=first_ms,
        until_ms=until_ms,
        limit=limit,
        seed=seed,
        rate=rate,
        cells=cells,
        speed=parse_speed(speed),
        supply=supply,
        location_every_s=location_every,
        duration_s=None if duration is None else parse_duration(duration),
        in_flight=in_flight,
    )


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 160)


def _run_async(work: object) -> int:
    import uvloop

    assert asyncio.iscoroutine(work)
    return int(uvloop.run(work))


def main() -> None:
    """Run the command line: one sentence and exit code 2 for what the user can put right."""
    logging.basicConfig(handlers=[logging.NullHandler()])  # a run logs to its data directory
    command = typer.main.get_command(app)
    try:
        code = command.main(standalone_mode=False)
    except NoArgsIsHelpError:
        code = 0
    except ClickException as error:
        print(f"demo: {error.format_message()}; `demo --help` lists the options", file=sys.stderr)
        code = 2
    except UsageError as error:
        print(f"demo: {error}", file=sys.stderr)
        code = 2
    except RunFailedError as error:
        print(f"demo: {error}", file=sys.stderr)
        code = 1
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
