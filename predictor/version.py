"""The release, in one place: the build reads it, the ledger records it."""

__version__ = "0.1.0"
