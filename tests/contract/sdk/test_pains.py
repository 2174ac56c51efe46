"""Each complaint of docs/sdk/pains.md has a test that exists, or says why it is out of scope."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def test_every_complaint_names_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|$", (ROOT / "docs/sdk/pains.md").read_text(), flags=re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(range(1, 21))
    assert sum(1 for *_, test in rows if test.strip()) == 19  # as the page's first paragraph says
    for number, _, here, test in rows:
        if not test.strip():
            assert "out of scope" in here, number
            continue
        path, name = test.strip().strip("`").split("::")
        assert re.search(rf"^(async def|def|class) {name}\b|^{name} =", (ROOT / path).read_text(), re.MULTILINE), test
