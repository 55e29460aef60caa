"""Callers of a service and their bearer tokens, hashed at rest.

A token is 32 random bytes, so a plain SHA-256 of it can be neither reversed nor guessed; the token is shown once.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import update
from sqlmodel import col, insert, select

from ledger.canonical import content_hash, label
from ledger.errors import LedgerError
from ledger.store import Ledger
from ledger.tables import TokenRow

SCOPES = ("read", "tune", "admin")
PREFIX = "isim_"  # so that a leaked token is recognised by scanners


@dataclass(frozen=True, slots=True)
class Token:
    """One caller; ``scopes`` are of :data:`SCOPES`."""

    name: str
    scopes: tuple[str, ...]
    created_at: str
    revoked_at: str | None


class Tokens:
    """The tokens of an open ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def add(self, name: str, scopes: Iterable[str]) -> str:
        """Make a caller and return its token, which nothing shows again."""
        wanted = tuple(dict.fromkeys(scopes))
        strange = [scope for scope in wanted if scope not in SCOPES]
        if strange or not wanted:
            raise LedgerError(f"scope {strange[0] if strange else ''!r}: must be one or more of {', '.join(SCOPES)}")
        token = PREFIX + secrets.token_urlsafe(32)
        with self._ledger.transaction(f"token {name!r} exists already; revoke it or choose another name") as connection:
            values = {
                "name": label(name, "token name"),
                "sha256": content_hash(token),
                "scopes": " ".join(wanted),
                "created_at": datetime.now(UTC).isoformat(timespec="microseconds"),
            }
            connection.execute(insert(TokenRow), values)
        return token

    def revoke(self, name: str) -> None:
        """Refuse a caller's token from now on."""
        with self._ledger.transaction() as connection:
            now = datetime.now(UTC).isoformat(timespec="microseconds")
            live = col(TokenRow.name) == name, col(TokenRow.revoked_at).is_(None)
            if connection.execute(update(TokenRow).where(*live).values(revoked_at=now)).rowcount == 0:
                raise LedgerError(f"token {name!r}: there is no such token that is valid")

    def all(self) -> tuple[Token, ...]:
        """Every caller, by name."""
        with self._ledger.reading() as session:
            return tuple(_token(row) for row in session.exec(select(TokenRow).order_by(col(TokenRow.name))))

    def find(self, token: str) -> Token | None:
        """The caller a token belongs to, None where it is unknown or revoked."""
        with self._ledger.reading() as session:
            same = col(TokenRow.sha256) == content_hash(token), col(TokenRow.revoked_at).is_(None)
            row = session.exec(select(TokenRow).where(*same)).first()
            return None if row is None else _token(row)


def _token(row: TokenRow) -> Token:
    return Token(row.name, tuple(row.scopes.split()), row.created_at, row.revoked_at)
