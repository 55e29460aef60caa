"""Deterministic core: types in, numbers out. Knows nothing of levers, ledger or agent."""
