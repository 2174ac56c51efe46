"""SQLite or PostgreSQL: tables, rows, and the one writer."""
