"""Rows of the ledger, as SQLModel tables. They stay inside this package.

Columns that one asks about are columns; what varies from search to search (levers, metrics, reasons) is canonical JSON,
in columns that end in ``_json``: one row a trial makes a trial whole or absent, and the text reads back to the same
doubles in every database. Of the record nothing is ever updated or deleted; of a service's own state, ``job`` and
``token``, it is. ``table=True`` classes do not validate, so rows are built only from records that do.

A change here needs a revision in :mod:`ledger.migrations`; a test compares the two.
"""

from sqlalchemy import CheckConstraint, Column, Double, ForeignKey, Index, Integer, MetaData, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

NAMES = {  # every constraint has a name, so that a later revision can address it
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
}


class Row(SQLModel):
    """Common base: the ledger's own metadata, apart from any other SQLModel program in the process."""

    metadata = MetaData(naming_convention=NAMES)


def _text(*args: ForeignKey, primary_key: bool = False, nullable: bool = False) -> Column[str]:
    return Column(Text, *args, primary_key=primary_key, nullable=nullable)


def _search_id() -> Column[int]:
    return Column(Integer, ForeignKey("search.id"), primary_key=True, autoincrement=False, nullable=False)


class InputRow(Row, table=True):
    """A file that searches read, once per content."""

    __tablename__ = "input"

    sha256: str = Field(sa_column=_text(primary_key=True))
    kind: str = Field(sa_column=_text())
    name: str = Field(sa_column=_text())
    text: str = Field(sa_column=_text())


class SearchRow(Row, table=True):
    """The whole input of a search."""

    __tablename__ = "search"
    __table_args__ = (Index(None, "input_sha256"), Index(None, "model"), {"sqlite_autoincrement": True})

    id: int | None = Field(default=None, sa_column=Column(Integer, primary_key=True))
    input_sha256: str = Field(sa_column=_text())
    model: str = Field(sa_column=_text())
    cluster: str = Field(sa_column=_text())
    objective: str = Field(sa_column=_text())
    request_json: str = Field(sa_column=_text())
    model_card_sha256: str = Field(sa_column=_text())
    catalogue_sha256: str = Field(sa_column=_text())
    anchor_sha256s_json: str = Field(sa_column=_text())
    prompt_sha256s_json: str = Field(sa_column=_text())
    code_version: str = Field(sa_column=_text())
    seed_json: str = Field(sa_column=_text())  # JSON, because a seed may be wider than an integer column
    created_at: str = Field(sa_column=_text())


class TrialRow(Row, table=True):
    """One trial; written once, in a transaction of its own."""

    __tablename__ = "trial"
    __table_args__ = (CheckConstraint("legal in (0, 1)", name="legal_is_bool"),)

    search_id: int = Field(sa_column=_search_id())
    trial_index: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False, nullable=False))
    origin: str = Field(sa_column=_text())
    hypothesis_json: str = Field(sa_column=_text())
    legal: int = Field(sa_column=Column(Integer, nullable=False))
    score: float | None = Field(default=None, sa_column=Column(Double, nullable=True))
    mode: str | None = Field(default=None, sa_column=_text(nullable=True))
    anchor: str | None = Field(default=None, sa_column=_text(nullable=True))
    levers_json: str = Field(sa_column=_text())
    metrics_json: str = Field(sa_column=_text())
    reasons_json: str = Field(sa_column=_text())
    flags_json: str = Field(sa_column=_text())
    fusion_opportunities_json: str = Field(sa_column=_text())
    recorded_at: str | None = Field(default=None, sa_column=_text(nullable=True))


class NoteRow(Row, table=True):
    """One note of a search, in the order written."""

    __tablename__ = "note"

    search_id: int = Field(sa_column=_search_id())
    position: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False, nullable=False))
    kind: str = Field(sa_column=_text())
    after_trial: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    facts_json: str = Field(sa_column=_text())
    costs_json: str = Field(sa_column=_text())
    recorded_at: str | None = Field(default=None, sa_column=_text(nullable=True))


class EndRow(Row, table=True):
    """How a search ended: a row of its own, so that no row is ever updated."""

    __tablename__ = "search_end"

    search_id: int = Field(sa_column=_search_id())
    status: str = Field(sa_column=_text())
    best_index: int | None = Field(default=None, sa_column=Column(Integer, nullable=True))
    summary_json: str = Field(sa_column=_text())
    costs_json: str = Field(sa_column=_text())
    finished_at: str = Field(sa_column=_text())


class JobRow(Row, table=True):
    """Work that a service has taken on. Unlike the record a job changes: who holds it, until when, how it went."""

    __tablename__ = "job"
    __table_args__ = (
        UniqueConstraint("search_id", name="uq_job_search_id"),
        UniqueConstraint("caller", "idempotency_key", name="uq_job_caller_idempotency_key"),
        Index(None, "status"),
        {"sqlite_autoincrement": True},
    )

    id: int | None = Field(default=None, sa_column=Column(Integer, primary_key=True))
    kind: str = Field(sa_column=_text())
    caller: str = Field(sa_column=_text())
    search_id: int | None = Field(default=None, sa_column=Column(Integer, ForeignKey("search.id"), nullable=True))
    request_json: str = Field(sa_column=_text())
    idempotency_key: str | None = Field(default=None, sa_column=_text(nullable=True))
    status: str = Field(sa_column=_text())
    cancel_requested: int = Field(sa_column=Column(Integer, nullable=False))
    fence: int = Field(sa_column=Column(Integer, nullable=False))  # grows with every claim; older holders may not write
    crashes: int = Field(sa_column=Column(Integer, nullable=False))  # leases that ran out
    lease_owner: str | None = Field(default=None, sa_column=_text(nullable=True))
    lease_until_s: float | None = Field(default=None, sa_column=Column(Double, nullable=True))  # the database's clock
    result_json: str | None = Field(default=None, sa_column=_text(nullable=True))
    problem_json: str | None = Field(default=None, sa_column=_text(nullable=True))
    created_at: str = Field(sa_column=_text())
    started_at: str | None = Field(default=None, sa_column=_text(nullable=True))
    finished_at: str | None = Field(default=None, sa_column=_text(nullable=True))


class TokenRow(Row, table=True):
    """A caller of a service, known by the hash of its token."""

    __tablename__ = "token"

    name: str = Field(sa_column=_text(primary_key=True))
    sha256: str = Field(sa_column=_text())
    scopes: str = Field(sa_column=_text())
    created_at: str = Field(sa_column=_text())
    revoked_at: str | None = Field(default=None, sa_column=_text(nullable=True))
