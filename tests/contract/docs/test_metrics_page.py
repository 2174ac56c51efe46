"""The page of metrics is what a service and a broker expose."""

from hailbus_devtools.derive_metrics import PAGE, page


def test_the_page_says_what_is_exposed() -> None:
    assert PAGE.read_text() == page(), "run `uv run derive-metrics`"
