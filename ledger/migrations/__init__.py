"""Alembic revisions of the ledger's tables, shipped inside the package."""
