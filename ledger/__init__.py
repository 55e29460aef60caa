"""The trial log: every search, trial, metric and legality reason, on SQLite or PostgreSQL."""
