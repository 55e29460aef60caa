"""The typed form: what its fields hold, and a tuning request of what was typed."""

import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from agent.request import DEFAULT_CONCURRENCY, DEFAULT_ISL_TOKENS, DEFAULT_OSL_TOKENS
from levers.objectives import OBJECTIVES
from predictor.errors import BadInput
from predictor.profiles.loader import engine_names, model_names, platform, platform_names

DEFAULTS: Mapping[str, str] = {
    "model": "",
    "gpu": "",
    "gpus_per_node": "8",
    "nodes": "1",
    "engine": "",
    "engine_version": "",
    "objective": "output_tok_s_per_gpu",
    "slos": "",
    "isl": str(DEFAULT_ISL_TOKENS),
    "osl": str(DEFAULT_OSL_TOKENS),
    "concurrency": str(DEFAULT_CONCURRENCY),
    "request_rate": "",
    "length_range": "",
    "prefix_hit": "",
    "pins": "",
    "free": "",
    "usd_per_gpu_h": "",
    "budget": "300",
    "planner": "auto",
    "guidance": "",
}
INTEGERS = ("gpus_per_node", "nodes", "isl", "osl", "concurrency", "budget")
NUMBERS = ("request_rate", "length_range", "prefix_hit", "usd_per_gpu_h")
LISTS = ("slos", "pins", "free")


def from_reading(reading: Mapping[str, Any]) -> dict[str, str]:
    """The form filled with what a text was understood to say, and with what is proposed for what it leaves open."""
    values = dict(DEFAULTS)
    for name, value in {**reading["proposals"], **reading["fields"]}.items():
        if name == "cluster":
            gpu, _, count = str(value).partition(":")
            per_node, _, nodes = count.partition("x")
            values |= {"gpu": gpu, "gpus_per_node": per_node, "nodes": nodes or "1"}
        elif name in values:
            values[name] = "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return values


def typed(values: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a tuning request; a number that is none names its field."""
    fields: dict[str, Any] = {}
    numbers: dict[str, int | float] = {}
    for name in (*INTEGERS, *NUMBERS):
        text = values[name].replace(",", "").replace("_", "")
        if not text:
            continue
        try:
            numbers[name] = int(text) if name in INTEGERS else float(text)
        except ValueError:
            kind = "a whole number" if name in INTEGERS else "a number"
            raise BadInput(f"{name} {values[name]!r}: must be {kind}") from None
    for name in ("model", "gpu", "engine"):
        if not values[name]:
            raise BadInput(f"{name}: choose one")
    nodes = numbers.pop("nodes", 1)
    cluster = f"{values['gpu']}:{numbers.pop('gpus_per_node', 8)}" + (f"x{nodes}" if nodes != 1 else "")
    fields |= {"model": values["model"], "cluster": cluster, "engine": values["engine"], **numbers}
    if "request_rate" in numbers:
        fields["arrival"] = "poisson"
    if values["planner"] not in ("", "auto", "seed", "llm"):
        raise BadInput(f"planner {values['planner']!r}: must be auto, seed or llm")
    for name in ("engine_version", "objective", "guidance"):
        if values[name]:
            fields[name] = values[name]
    for name in LISTS:
        lines = [line.strip() for line in values[name].replace(",", "\n").splitlines()]
        fields[name] = tuple(filter(None, lines))
    return fields


def context(values: Mapping[str, str]) -> dict[str, Any]:
    """What the form's page shows."""
    return {"values": values, "choices": choices(), "key": secrets.token_urlsafe(16)}


@lru_cache(maxsize=1)
def choices() -> dict[str, Any]:
    """What the form's lists offer."""
    return {
        "models": model_names(),
        "gpus": [(name, platform(name).gpus_per_node) for name in platform_names()],
        "engines": engine_names(),
        "objectives": [(one.name, one.unit, one.definition) for one in OBJECTIVES],
    }
