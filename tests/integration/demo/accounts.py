"""How a recorded run's accounts are read in a test, and one line drawn over them."""

from hailbus_demo.ledger.accounts import Accounts, BookAccount, BookingAccount, PaymentAccount, SurgeAccount
from hailbus_demo.ledger.gather import Gatherer
from hailbus_demo.ledger.lines import LINES
from hailbus_demo.ledger.log import LogAccount
from hailbus_demo.ledger.model import Line

from tests.integration.demo.recorded import RecordedRun, data


async def accounts_of(run: RecordedRun, *, so_far: bool = False) -> Accounts:
    gatherer = Gatherer(run.sources("memory:1"))
    accounts = await gatherer.gather(so_far=so_far)
    await gatherer.close()
    return accounts


def line(accounts: Accounts, name: str) -> Line:
    found = next(spec for spec in LINES if spec.id == name).draw(accounts)
    assert found is not None
    return found


def log_of(accounts: Accounts) -> LogAccount:
    assert isinstance(accounts.log, LogAccount)
    return accounts.log


def booking_of(accounts: Accounts) -> BookingAccount:
    assert isinstance(accounts.booking, BookingAccount)
    return accounts.booking


def surge_of(accounts: Accounts) -> SurgeAccount:
    assert isinstance(accounts.surge, SurgeAccount)
    return accounts.surge


def payment_of(accounts: Accounts) -> PaymentAccount:
    assert isinstance(accounts.payment, PaymentAccount)
    return accounts.payment


def book_of(accounts: Accounts) -> BookAccount:
    assert isinstance(accounts.book, BookAccount)
    return accounts.book


async def under_way(run: RecordedRun) -> tuple[Accounts, str]:
    """Return accounts by all of which one ride is matched."""
    ride_id = data(run.find("ride.completed"))["ride_id"]
    seq = data(run.find("ride.matched", ride_id=ride_id))["seq"]
    for kind in ("ride.completed", "ride.started", "ride.driver_arrived"):
        run.take_out(run.find(kind, ride_id=ride_id))
    run.sql("booking", "UPDATE booking_rides SET state = 'matched', seq = ? WHERE ride_id = ?", seq, ride_id)
    lines = [one for one in run.book_lines() if one.get("ride_id") != ride_id or one["state"] == "matched"]
    run.write_book(lines)
    return await accounts_of(run), ride_id
