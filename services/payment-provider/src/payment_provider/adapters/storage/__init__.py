"""SQLite or PostgreSQL by SQLAlchemy."""
