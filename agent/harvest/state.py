"""What an interrupted harvest has measured already: one JSON line a measurement, kept until the artefact is written."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from predictor.errors import BadInput

Row = Mapping[str, Any]


@dataclass(slots=True)
class Kept:
    """Measurements by name, backed by a file."""

    path: Path
    rows: dict[str, Row]

    @classmethod
    def open(cls, folder: Path, key: str) -> "Kept":
        """Measurements of this plan and deployment; a last line that was cut is dropped."""
        path = folder / f"{key}.jsonl"
        rows: dict[str, Row] = {}
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            lines = []
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{path}: measurements of the interrupted run cannot be read ({error}); remove it") from None
        for line in lines:
            try:
                row = json.loads(line)
                rows[row["name"]] = row
            except (json.JSONDecodeError, KeyError, TypeError):
                break
        return cls(path, rows)

    def get(self, name: str) -> Row | None:
        """A measurement made before."""
        return self.rows.get(name)

    def keep(self, name: str, row: Row) -> None:
        """Write a measurement down before anything else happens."""
        self.rows[name] = row
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, **row}, allow_nan=False) + "\n")
        except OSError as error:
            raise BadInput(f"{self.path}: measurement not kept ({error.strerror}): the harvest stops here") from None

    def forget(self) -> None:
        """The artefact is written."""
        self.path.unlink(missing_ok=True)
        self.rows.clear()
