"""The example of the guide: its test fails as the guide says, and its fix passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_lost_update_of_the_guide_and_its_fix(tmp_path: Path) -> None:
    guide = (ROOT / "docs/broker/in-tests.md").read_text()
    (example,) = re.findall(r"```python\n(# test_balance\.py.*?)```", guide, re.DOTALL)
    (tmp_path / "test_balance.py").write_text(example)
    (tmp_path / "test_fixed.py").write_text(example.replace('key="deposit_id"', 'key="account"'))
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "FAILED test_balance.py::test_no_deposit_is_lost" in done.stdout
    assert "in a simulated world with seed 0" in done.stdout


def test_the_failover_of_the_guide(tmp_path: Path) -> None:
    guide = (ROOT / "docs/broker/in-tests.md").read_text()
    (example,) = re.findall(r"```python\n(# test_failover\.py.*?)```", guide, re.DOTALL)
    (tmp_path / "test_failover.py").write_text(example)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout
