"""The transaction coordinator: who may write in which transaction, and how each one ends (KIP-98, 360, 447, 890)."""
