"""How other processes talk to a running lake-sink: by one file."""

from pathlib import Path

from analytics_spark.session import LakeLayout

__all__ = ["request_finish"]


def request_finish(lake_dir: Path | str) -> Path:
    """Ask the running sink to land what the broker has now, bring silver and gold up to it, and end with exit code 0.

    Returns:
        The file that asks. The sink removes it when it is done, so "process ended and file gone" means caught up.
    """
    layout = LakeLayout(Path(lake_dir).expanduser().absolute())
    layout.root.mkdir(parents=True, exist_ok=True)
    layout.finish.touch()
    return layout.finish
