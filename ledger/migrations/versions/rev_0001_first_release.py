"""First release: inputs by content, searches, trials, notes, ends."""

from alembic import op
from sqlalchemy import CheckConstraint, Column, Double, ForeignKeyConstraint, Integer, PrimaryKeyConstraint, Text

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the five tables."""
    op.create_table(
        "input",
        Column("sha256", Text, nullable=False),
        Column("kind", Text, nullable=False),
        Column("name", Text, nullable=False),
        Column("text", Text, nullable=False),
        PrimaryKeyConstraint("sha256", name="pk_input"),
    )
    op.create_table(
        "search",
        Column("id", Integer, nullable=False),
        Column("input_sha256", Text, nullable=False),
        Column("model", Text, nullable=False),
        Column("cluster", Text, nullable=False),
        Column("objective", Text, nullable=False),
        Column("request_json", Text, nullable=False),
        Column("model_card_sha256", Text, nullable=False),
        Column("catalogue_sha256", Text, nullable=False),
        Column("anchor_sha256s_json", Text, nullable=False),
        Column("prompt_sha256s_json", Text, nullable=False),
        Column("code_version", Text, nullable=False),
        Column("seed_json", Text, nullable=False),
        Column("created_at", Text, nullable=False),
        PrimaryKeyConstraint("id", name="pk_search"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_search_input_sha256", "search", ["input_sha256"])
    op.create_index("ix_search_model", "search", ["model"])
    op.create_table(
        "trial",
        Column("search_id", Integer, nullable=False),
        Column("trial_index", Integer, autoincrement=False, nullable=False),
        Column("origin", Text, nullable=False),
        Column("hypothesis_json", Text, nullable=False),
        Column("legal", Integer, nullable=False),
        Column("score", Double, nullable=True),
        Column("mode", Text, nullable=True),
        Column("anchor", Text, nullable=True),
        Column("levers_json", Text, nullable=False),
        Column("metrics_json", Text, nullable=False),
        Column("reasons_json", Text, nullable=False),
        Column("flags_json", Text, nullable=False),
        Column("fusion_opportunities_json", Text, nullable=False),
        Column("recorded_at", Text, nullable=True),
        PrimaryKeyConstraint("search_id", "trial_index", name="pk_trial"),
        ForeignKeyConstraint(["search_id"], ["search.id"], name="fk_trial_search_id"),
        CheckConstraint("legal in (0, 1)", name="legal_is_bool"),
    )
    op.create_table(
        "note",
        Column("search_id", Integer, nullable=False),
        Column("position", Integer, autoincrement=False, nullable=False),
        Column("kind", Text, nullable=False),
        Column("after_trial", Integer, nullable=True),
        Column("facts_json", Text, nullable=False),
        Column("costs_json", Text, nullable=False),
        Column("recorded_at", Text, nullable=True),
        PrimaryKeyConstraint("search_id", "position", name="pk_note"),
        ForeignKeyConstraint(["search_id"], ["search.id"], name="fk_note_search_id"),
    )
    op.create_table(
        "search_end",
        Column("search_id", Integer, autoincrement=False, nullable=False),
        Column("status", Text, nullable=False),
        Column("best_index", Integer, nullable=True),
        Column("summary_json", Text, nullable=False),
        Column("costs_json", Text, nullable=False),
        Column("finished_at", Text, nullable=False),
        PrimaryKeyConstraint("search_id", name="pk_search_end"),
        ForeignKeyConstraint(["search_id"], ["search.id"], name="fk_search_end_search_id"),
    )


def downgrade() -> None:
    """Drop them again, children first."""
    for table in ("search_end", "note", "trial", "search", "input"):
        op.drop_table(table)
