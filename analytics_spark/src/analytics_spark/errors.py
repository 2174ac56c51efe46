"""What the lake refuses, in one sentence that says what to do. Commands print it and exit with code 2."""

__all__ = ["ChecksumError", "DataLossError", "LakeError", "LakeInUseError", "LakeMissingError", "SetUpError"]


class LakeError(Exception):
    """Base of everything that the lake raises on purpose."""


class SetUpError(LakeError):
    """Java or a jar is missing and could not be had."""


class ChecksumError(SetUpError):
    """A downloaded jar is not the pinned one."""

    def __init__(self, *, name: str, expected: str, found: str) -> None:
        self.name = name
        self.expected = expected
        self.found = found
        super().__init__(
            f"{name} was downloaded with SHA-256 {found[:16]}…, pinned is {expected[:16]}…; "
            "try again, and look at the mirror in between if it stays so"
        )


class LakeInUseError(LakeError):
    """Another driver holds the lock of this lake."""

    def __init__(self, *, lock: str, holder: str) -> None:
        self.lock = lock
        self.holder = holder
        super().__init__(
            f"another lake-sink{f' (process {holder})' if holder else ''} holds {lock}; "
            "stop it, or give this one another LAKE_DIR"
        )


class LakeMissingError(LakeError):
    """There is no lake, or not this table."""


class DataLossError(LakeError):
    """The broker no longer has what the checkpoint says comes next: going on would leave a silent gap."""
