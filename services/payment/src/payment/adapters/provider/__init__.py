"""The payment provider over HTTP."""
