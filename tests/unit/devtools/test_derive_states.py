from hailbus_devtools.derive_states import PAGE, page


def test_the_page_shows_the_tables() -> None:
    assert PAGE.read_text() == page(), "run `uv run derive-states`"
    assert "    Ongoing --> PrepareCommit\n" in page()
    assert "    Stable --> PreparingRebalance\n" in page()
