"""Text an LLM sees: one Markdown file a prompt, identified by the SHA-256 of what the LLM reads.

A file may start with a comment block ``<!-- … -->`` for people; it is not part of the prompt.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import resources

NAMES = ("planner", "investigate", "summary", "ask", "request", "planner_brief", "investigate_brief")
_COMMENT = re.compile(r"\A\s*<!--.*?-->\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt as the LLM reads it."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        """Content hash, as the ledger stores it."""
        return sha256(self.text.encode("utf-8")).hexdigest()


@lru_cache(maxsize=len(NAMES))
def load(name: str) -> Prompt:
    """The prompt of this name; a name without a file is a bug."""
    text = (resources.files("prompts") / f"{name}.md").read_text(encoding="utf-8")
    return Prompt(name, _COMMENT.sub("", text).strip())


def load_all() -> tuple[Prompt, ...]:
    """Every prompt, in the order of :data:`NAMES`."""
    return tuple(load(name) for name in NAMES)
