"""The ledger: whether what was asked for, what was published, what was applied and what lies in the lake agree."""
