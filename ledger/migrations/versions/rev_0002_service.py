"""The service's own state: its queue of jobs, and the tokens of its callers."""

from alembic import op
from sqlalchemy import Column, Double, ForeignKeyConstraint, Integer, PrimaryKeyConstraint, Text, UniqueConstraint

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the two tables."""
    op.create_table(
        "job",
        Column("id", Integer, nullable=False),
        Column("kind", Text, nullable=False),
        Column("caller", Text, nullable=False),
        Column("search_id", Integer, nullable=True),
        Column("request_json", Text, nullable=False),
        Column("idempotency_key", Text, nullable=True),
        Column("status", Text, nullable=False),
        Column("cancel_requested", Integer, nullable=False),
        Column("fence", Integer, nullable=False),
        Column("crashes", Integer, nullable=False),
        Column("lease_owner", Text, nullable=True),
        Column("lease_until_s", Double, nullable=True),
        Column("result_json", Text, nullable=True),
        Column("problem_json", Text, nullable=True),
        Column("created_at", Text, nullable=False),
        Column("started_at", Text, nullable=True),
        Column("finished_at", Text, nullable=True),
        PrimaryKeyConstraint("id", name="pk_job"),
        UniqueConstraint("search_id", name="uq_job_search_id"),
        UniqueConstraint("caller", "idempotency_key", name="uq_job_caller_idempotency_key"),
        ForeignKeyConstraint(["search_id"], ["search.id"], name="fk_job_search_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_status", "job", ["status"])
    op.create_table(
        "token",
        Column("name", Text, nullable=False),
        Column("sha256", Text, nullable=False),
        Column("scopes", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        Column("revoked_at", Text, nullable=True),
        PrimaryKeyConstraint("name", name="pk_token"),
    )


def downgrade() -> None:
    """Drop them again."""
    for table in ("token", "job"):
        op.drop_table(table)
