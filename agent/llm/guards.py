"""What keeps untrusted text from doing harm: secrets are blanked, control characters dropped, lengths bounded.

Text that comes from models, traces, anchors, requests or a language model is data. It reaches a prompt as a JSON string
only, and it can open nothing: pins, bounds and legal sets come from the typed request alone.
"""

import os
import re
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

BLANK = "[secret]"
MAX_TEXT = 4000  # characters of one text, in a prompt or a note
SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?$", re.IGNORECASE)
SECRET_SHAPE = re.compile(
    r"\b(?:sk|pk|rk|hf|gh[pousr]|xox[abps]|glpat)[-_][A-Za-z0-9_\-]{12,}"  # provider tokens by their prefix
    r"|\bAKIA[A-Z0-9]{12,}"
    r"|(?<=Bearer )[A-Za-z0-9._\-]{8,}"
    r"|(?<=://)[^/@\s:]+:[^/@\s]+(?=@)",  # user:password of a URL
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
SHORTEST_SECRET = 6  # characters; a shorter value would blank ordinary words


class Redactor:
    """Blanks known secret values and whatever has the shape of one."""

    def __init__(self, secrets: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        named = (value for name, value in variables.items() if SECRET_NAME.search(name))
        values = {value for value in (*secrets, *named) if len(value) >= SHORTEST_SECRET}
        self._values = sorted(values, key=len, reverse=True)  # the longest first: one may hold another

    def text(self, text: str, limit: int = MAX_TEXT) -> str:
        """One text: no secrets, no control characters, valid Unicode, at most ``limit`` characters."""
        for value in self._values:
            text = text.replace(value, BLANK)
        text = SECRET_SHAPE.sub(BLANK, text)
        text = CONTROL.sub(" ", text).encode("utf-8", "replace").decode("utf-8")
        return text if len(text) <= limit else text[: limit - 1] + "…"

    def value(self, value: Any, limit: int = MAX_TEXT) -> Any:
        """Every text inside a JSON-like value, keys included."""
        if isinstance(value, str):
            return self.text(value, limit)
        if isinstance(value, Mapping):
            return {self.text(str(key), limit): self.value(item, limit) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item, limit) for item in value]
        if isinstance(value, float) and not isfinite(value):
            return str(value)  # JSON has no such number, and a prompt must not fail over one
        return value
