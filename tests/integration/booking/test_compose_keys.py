"""The keys in `compose/secrets` fit together: containers start with them when nobody made others."""

from pathlib import Path

from booking.adapters.http.tokens import TokenVerifier, read_keys
from booking.domain.caller import Caller, Role
from hailbus_demo.replay.tokens import FLEET, OPERATOR, Tokens

SECRETS = Path(__file__).resolve().parents[3] / "compose" / "secrets"


def test_the_keys_of_the_containers_fit_together() -> None:
    verifier = TokenVerifier(read_keys(SECRETS / "booking_auth_keys"))
    simulator = Tokens.read(SECRETS / "booking_signing_key", option="--booking-key")
    for role, subject in (("rider", "r1"), FLEET, OPERATOR):
        assert verifier.caller(simulator.of((role, subject))) == Caller(role=Role(role), subject=subject)
    dashboard = (SECRETS / "dashboard_booking_token").read_text().strip()
    assert verifier.caller(dashboard) == Caller(role=Role.OPERATOR, subject="dashboard")
