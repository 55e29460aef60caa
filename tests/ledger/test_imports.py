"""The package is light: what a command does not use, it does not import."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import ledger, ledger.export, ledger.queries", ("sqlalchemy", "sqlmodel", "alembic", "pyarrow", "pydantic")),
        ("from ledger import open_ledger; open_ledger(':memory:')", ("alembic", "pyarrow", "psycopg")),
    ],
)
def test_what_is_not_needed_is_not_imported(statement: str, absent: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE)
    assert done.stdout == "[]\n"
