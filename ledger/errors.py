"""Exceptions of the ledger.

::

    LedgerError              names the file or URL and says what to do; one line, made for the person at the keyboard
    ├── RecordRefused        the record itself is not storable: NaN, infinity, a value JSON cannot hold
    ├── UnknownSearch        no search has this id
    └── Conflict             the row is there already, or its search is finished: two processes write one search

Everything else that is raised is a bug and propagates with its traceback.
"""


class LedgerError(Exception):
    """A ledger that cannot be opened, read or written."""


class RecordRefused(LedgerError):
    """A record whose values the ledger does not store."""


class UnknownSearch(LedgerError):
    """An id that no search of this ledger has."""


class Conflict(LedgerError):
    """A row that is already there, or a search that takes no more."""
