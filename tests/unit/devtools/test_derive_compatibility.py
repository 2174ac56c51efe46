from hailbus_devtools.derive_compatibility import PAGE, page


def test_the_page_says_what_is_served() -> None:
    assert PAGE.read_text() == page(), "run `uv run derive-compatibility`"
