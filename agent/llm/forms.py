"""What a language model may answer: bounded, lenient forms.

Names are offered as enumerations in the JSON schema and checked afterwards, so that a wrong one is a value to refuse
and not an unreadable answer.
"""

import json
import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from levers.objectives import LATENCIES

MAX_WORDS = 400  # characters of one text of an answer
MAX_SENTENCE = 200  # of one hypothesis, and of the one short question about a request
MAX_UNIT = 24  # of a unit
BOUNDED = (*LATENCIES, *(f"{name}_p99" for name in LATENCIES), "interactivity_tok_s_user")  # what requests mostly bound
LARGEST_NUMBER = 1e12


def _text(value: Any) -> str:
    """Any JSON value as a short text."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text.strip()[:MAX_WORDS]


def _number(value: Any) -> float:
    """A finite number; what is none is 0, which means "not said"."""
    if isinstance(value, str):
        try:
            value = float(value.replace(",", "").strip() or 0)
        except ValueError:
            return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return 0.0
    return float(min(max(value, -LARGEST_NUMBER), LARGEST_NUMBER))


def _count(value: Any) -> int:
    return int(_number(value))


def _side(value: Any) -> str:
    return ">=" if _text(value) in (">=", ">", "≥", "at least", "min") else "<="


def _list(limit: int) -> BeforeValidator:
    """At most ``limit`` objects; a single one may come without its brackets, and what is no object is dropped."""

    def shape(value: Any) -> list[Any]:
        items = value if isinstance(value, list) else [] if value in (None, "") else [value]
        return [item for item in items if isinstance(item, dict | BaseModel)][:limit]

    return BeforeValidator(shape)


Text = Annotated[str, BeforeValidator(_text), Field(max_length=MAX_WORDS)]
Short = Annotated[str, BeforeValidator(lambda value: _text(value)[:MAX_UNIT]), Field(max_length=MAX_UNIT)]
Sentence = Annotated[str, BeforeValidator(lambda value: _text(value)[:MAX_SENTENCE]), Field(max_length=MAX_SENTENCE)]
Number = Annotated[float, BeforeValidator(_number)]
Count = Annotated[int, BeforeValidator(_count)]


def lean(schema: dict[str, Any]) -> None:
    """Leave out of a schema what tells a reader nothing: it is printed in every prompt, and prompts cost money."""
    for part in (schema, *schema.get("properties", {}).values()):
        for key in ("title", "default", *(("maxLength",) if "enum" in part else ())):
            part.pop(key, None)


class Form(BaseModel):
    """A form: unknown keys are ignored, missing ones empty."""

    model_config = ConfigDict(frozen=True, extra="ignore", json_schema_extra=lean)


AnyForm = TypeVar("AnyForm", bound=Form)


class BoundForm(Form):
    """One bound as the text gives it."""

    metric: Annotated[Text, Field(json_schema_extra={"enum": [*BOUNDED, ""]})] = ""
    relation: Annotated[Literal["<=", ">="], BeforeValidator(_side)] = "<="
    value: Number = 0.0
    unit: Short = ""


class RequestForm(Form):
    """A tuning request as a language model reads it; empty or 0 where the text does not say."""

    model: Text = ""
    gpu: Text = ""
    gpus_per_node: Count = 0
    nodes: Count = 0
    engine: Text = ""
    objective: Text = ""
    bounds: Annotated[list[BoundForm], _list(4), Field(max_length=4)] = []
    isl: Count = 0
    osl: Count = 0
    concurrency: Count = 0
    budget: Count = 0
    question: Sentence = ""


def with_names(form: type[AnyForm], names: dict[str, tuple[str, ...]]) -> type[AnyForm]:
    """The form with legal names in its JSON schema, the empty one included; what is validated does not change."""
    fields: dict[str, Any] = {}
    for field, legal in names.items():
        info = form.model_fields[field]
        annotation = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
        fields[field] = (annotation, Field(default=info.default, json_schema_extra={"enum": [*legal, ""]}))
    return create_model(form.__name__, __base__=form, __doc__=form.__doc__, **fields)
