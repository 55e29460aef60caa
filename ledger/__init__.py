"""The trial log: every search, trial, metric and legality reason, on SQLite or PostgreSQL.

This package is light to import; :func:`open_ledger` brings in SQLAlchemy, and only an upgrade brings in Alembic.
"""

from typing import TYPE_CHECKING

from ledger.errors import Conflict, LedgerError, RecordRefused, UnknownSearch
from ledger.record import InputFile, NoteRecord, SearchEnd, SearchRecord, StoredSearch, TrialRecord

if TYPE_CHECKING:
    from ledger.store import Ledger

__all__ = [
    "Conflict",
    "InputFile",
    "LedgerError",
    "NoteRecord",
    "RecordRefused",
    "SearchEnd",
    "SearchRecord",
    "StoredSearch",
    "TrialRecord",
    "UnknownSearch",
    "open_ledger",
]


def open_ledger(url: str, *, create: bool = True, write: bool = True) -> "Ledger":
    """Open a ledger by path or URL; see :meth:`ledger.store.Ledger.open`."""
    from ledger.store import Ledger

    return Ledger.open(url, create=create, write=write)
