"""Alembic's entry: runs the revisions on the connection that :func:`ledger.migrate.upgrade` hands over."""

from alembic import context

from ledger.tables import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    render_as_batch=True,  # SQLite cannot alter a column in place
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
