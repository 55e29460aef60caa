"""Partial configurations as a language model writes them, brought to one bounded form: lever names and JSON values.

Nothing is judged here. A value that no lever could have comes out as a short text, so that the one door can refuse it
with its reason and the ledger can hold it.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, RootModel, WithJsonSchema, model_validator

from agent.llm.forms import MAX_WORDS, Form, Sentence, Text
from agent.request import literal
from levers.catalog import LEVERS

MAX_CHANGES = 8  # levers one partial configuration may name
MAX_NAME = 60  # characters of a lever's name
MAX_VALUE = 120  # characters of a value
MAX_ITEMS = 16  # of a list value
LARGEST_COUNT = 2**53  # integers beyond this are not exact in JSON
LEVER_NAMES = tuple(lever.name for lever in LEVERS)

Changes = dict[str, Any]
Value = Annotated[Any, WithJsonSchema({"type": "string", "maxLength": MAX_NAME})]


def plain_value(lever: str, value: Any) -> Any:
    """A value as the space takes it: numbers, switches and names out of strings, lists of names, nothing unbounded.

    >>> [plain_value("tp", value) for value in ("8", "off", "null", 1e400)], plain_value("fusions", "act_quant")
    ([8, False, None, 'inf'], ['act_quant'])
    """
    if isinstance(value, str):
        text = value.strip()[:MAX_VALUE]
        text = "default" if text.lower() == "null" else text
        value = literal(text) if len(text) < MAX_NAME else text
        if lever == "fusions" and isinstance(value, str):
            value = [] if value in ("none", "", "[]") else [name for name in re.split(r"[\s,+]+", value) if name]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) < LARGEST_COUNT else str(value)[:MAX_VALUE]
    if isinstance(value, float):
        whole = math.isfinite(value) and value == int(value) and abs(value) < LARGEST_COUNT
        return (int(value) if whole else value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [str(item)[:MAX_NAME] for item in value[:MAX_ITEMS]]
    return json.dumps(value, default=str)[:MAX_VALUE]


def plain_changes(value: Any) -> Changes:
    """Any of the shapes models use for a partial configuration, as lever to value; the last mention of a lever counts.

    >>> plain_changes([{"lever": "tp", "value": "8"}, {"ep": 8}]), plain_changes('{"tp": 4}'), plain_changes(7)
    ({'tp': 8, 'ep': 8}, {'tp': 4}, {})
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if isinstance(value, Mapping):
        if set(value) <= {"lever", "value"} and "lever" in value:
            items = [(value["lever"], value.get("value"))]
        else:
            items = list(value.items())
        cut = [(str(name)[:MAX_NAME], item) for name, item in items[:MAX_CHANGES]]
        return {name: plain_value(name, item) for name, item in cut}
    found: Changes = {}
    if isinstance(value, list | tuple):
        for item in value[: 2 * MAX_CHANGES]:
            found |= plain_changes(item.model_dump() if isinstance(item, BaseModel) else item)
    return dict(list(found.items())[:MAX_CHANGES])


class Change(Form):
    """One lever and the value to give it."""

    lever: Annotated[Text, Field(json_schema_extra={"enum": list(LEVER_NAMES)})] = ""
    value: Value = ""


class Proposal(Form):
    """One partial configuration and the number of the hypothesis it tests (from 1; 0: none)."""

    hypothesis: Annotated[int, Field(ge=0, le=5)] = 0
    changes: Annotated[list[Change], Field(default_factory=list, max_length=MAX_CHANGES)]

    @model_validator(mode="before")
    @classmethod
    def _any_shape(cls, value: Any) -> Any:
        return shaped(value)

    def partial(self) -> Changes:
        """Lever to value."""
        return {change.lever: change.value for change in self.changes}


def shaped(value: Any) -> Any:
    """A proposal in any of its shapes: named parts, or the levers themselves."""
    if isinstance(value, BaseModel):
        return value
    fields: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"changes": value}
    number = fields.pop("hypothesis", 0)
    for name in ("changes", "partial", "configuration", "config", "levers", "setting"):
        if name in fields and not isinstance(fields[name], int | float):
            fields = {"changes": fields[name]}
            break
    else:
        fields = {"changes": fields}
    changes = plain_changes(fields["changes"])
    if isinstance(number, str):
        digits = re.search(r"\d+", number)
        number = int(digits[0]) if digits else 0
    number = number if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= 5 else 0
    return {
        "hypothesis": number,
        "changes": [{"lever": lever, "value": item} for lever, item in changes.items()],
    }


class Words(RootModel[Text]):
    """A short text."""

    model_config = ConfigDict(frozen=True)


TOOL_NAMES = ("evaluate", "read_history", "read_best", "read_legal", "read_budget", "write_note", "read_notes", "ask")
FINISH = "finish"


class ToolName(RootModel[Annotated[Text, Field(json_schema_extra={"enum": [*TOOL_NAMES, FINISH]})]]):
    """A tool's name; one that is none is a value to answer, not an unreadable step."""

    model_config = ConfigDict(frozen=True)


class Hypotheses(RootModel[Annotated[list[Sentence], Field(max_length=5)]]):
    """At most five testable sentences."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _at_most_five(cls, value: Any) -> Any:
        items = value if isinstance(value, list) else [value]
        return [item for item in items if item][:5]


class Configurations(RootModel[Annotated[list[Proposal], Field(max_length=8)]]):
    """Partial configurations, most promising first."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _at_most_eight(cls, value: Any) -> Any:
        items = value if isinstance(value, list) else [value]
        return [item for item in items if isinstance(item, dict | list | str | BaseModel)][:8]


class ToolArguments(Form):
    """What any tool may take: levers to change with the hypothesis they test, or a text."""

    changes: Annotated[list[Change], Field(default_factory=list, max_length=MAX_CHANGES)]
    hypothesis: Annotated[int, Field(ge=0, le=5)] = 0
    text: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _any_shape(cls, value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError:
                return {"text": value}
        if not isinstance(value, Mapping):
            return {"changes": shaped(value)["changes"]}
        fields = dict(value)
        texts = [fields.pop(name) for name in ("text", "note", "question", "lever_name", "name") if name in fields]
        text = next((item for item in texts if item), "")
        return {"text": text if isinstance(text, str) else json.dumps(text, default=str)[:MAX_WORDS], **shaped(fields)}

    def partial(self) -> Changes:
        """Lever to value."""
        return {change.lever: change.value for change in self.changes}
