"""The wire protocol: how bytes become messages and messages bytes."""
