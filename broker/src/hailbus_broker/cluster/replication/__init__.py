"""Replication of partitions, as far as it decides: who is in sync, what is committed, where a follower has to cut."""
