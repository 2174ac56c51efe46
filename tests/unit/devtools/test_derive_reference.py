"""The API reference is what the docstrings say."""

from hailbus_devtools.derive_reference import PAGE, hailbus, page


def test_the_page_is_what_the_docstrings_say() -> None:
    assert PAGE.read_text() == page(), "run `uv run derive-reference`"


def test_the_page_has_every_public_name_and_says_what_it_is() -> None:
    entries = dict(part.split("\n", 1) for part in page().split("\n### ")[1:])
    assert sorted(entries) == sorted(hailbus.__all__)
    assert "**Raises**" in entries["Publisher"]
    assert "`max_buffered_records, max_buffered_bytes`: When reached, publishing waits." in entries["PublisherSettings"]
    assert "clock: Clock = utc_now," in entries["Service"]
    assert "async publish(event: E_contra, *, id: str | None = None," in entries["Publisher"]
    assert [name for name, text in entries.items() if not text.strip()] == []
