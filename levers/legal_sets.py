"""The legal set of every lever as plain data: what ``inferasim levers --json`` prints and the planner reads."""

from typing import Any

from levers.catalog import LEVERS
from levers.context import SearchContext
from levers.lever import Lever
from levers.space import as_json_value


def legal_sets(context: SearchContext) -> dict[str, Any]:
    """Every lever by name, in catalogue order: kind, values to try, accepted range, and each value left out with "
    "why."""
    return {lever.name: legal_set(lever, context) for lever in LEVERS}


def legal_set(lever: Lever, context: SearchContext) -> dict[str, Any]:
    """One lever's entry. ``range`` holds the numbers accepted beside the listed values, null where there are none."""
    flag = lever.flag(context.engine.name, context.engine_version)
    accepted = lever.accepts if lever.pinned_value(context) is None else None
    return {
        "number": lever.number,
        "group": str(lever.group),
        "kind": str(lever.kind),
        "what": lever.what,
        "values": [as_json_value(value) for value in lever.values(context)],
        "range": [accepted.low, accepted.high] if accepted else None,
        "default": as_json_value(lever.default(context)),
        "pinned": lever.pinned_value(context) is not None,
        "flag": {"text": flag.text, "default": flag.default, "note": flag.note} if flag else None,
        "left_out": [
            {"value": as_json_value(value), "code": reason.code, "reason": reason.message}
            for value, reason in lever.left_out(context)
        ],
    }
