"""Weka coding-agent traces (kv-cache-tester, AgentX) as records: one JSON object a session tree.

``{"id", "hash_id_scope", "requests": [...]}``; an entry of ``requests`` is a turn (``t`` s after the start, ``in``,
``out``, ``hash_ids`` of full blocks, optional ``api_time`` and ``think_time`` in s) or a sub-agent (``type:
"subagent"``, ``t``, ``status``, ``duration_ms`` and its own ``requests``, timed from its start).

A sub-agent follows the turn before it. A *completed* one carries its completion time as ``t``; the next turn that
starts later joins it. Others ran on their own: they gate nothing. The recorded pause of a joining turn holds its
sub-agents' run time, so it is counted from the last completion instead.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from predictor.workload.json_stream import Document, documents

_MS_PER_S = 1000.0


def weka(text: Iterable[str]) -> Iterator[Document]:
    """One record a request, in order of recorded start, so that references point back."""
    for number, document in enumerate(documents(text)):
        trace = document.value
        if not isinstance(trace, dict) or not isinstance(trace.get("requests"), list):
            fault = document.fault or "a trace is an object with 'id' and 'requests'"
            yield Document(document.line, trace, fault, document.kind, document.resumable)
            continue
        try:
            records = _tree_records(trace, str(trace.get("id", f"trace{number}")))
        except (TypeError, ValueError, KeyError) as bad:
            yield Document(document.line, trace, f"a field of the trace is missing or no number ({bad})")
            continue
        yield from (Document(document.line, record) for record in records)


def _tree_records(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """Records of a root session and its sub-agents."""
    scope = None if trace.get("hash_id_scope") == "per_context" else name
    turns = _chain([entry for entry in trace["requests"] if entry.get("type") != "subagent"], name, 0.0, scope)
    records = list(turns)
    before: dict[str, Any] | None = None
    following = iter(turns)
    ended: list[tuple[float, str]] = []
    agents = 0
    for entry in trace["requests"]:
        if entry.get("type") != "subagent":
            before = next(following)
            _join(before, [agent for agent in ended if agent[0] <= before["timestamp"]])
            ended = [agent for agent in ended if agent[0] > before["timestamp"]]
            continue
        agents += 1
        completed = entry.get("status") == "completed"
        at_ms = entry["t"] * _MS_PER_S
        start_ms = at_ms - entry.get("duration_ms", 0.0) if completed else at_ms
        chain = _chain(entry["requests"], f"{name}/a{agents}", start_ms, scope)
        if not chain:
            continue
        _spawn(chain[0], name, before)
        records += chain
        if completed:
            ended.append((at_ms, chain[-1]["request_id"]))
    return sorted(records, key=lambda record: float(record["timestamp"]))


def _chain(entries: list[dict[str, Any]], session: str, start_ms: float, scope: str | None) -> list[dict[str, Any]]:
    """Turns of one session, each behind the one before."""
    records: list[dict[str, Any]] = []
    end_ms = start_ms
    for turn, entry in enumerate(entries):
        at_ms = start_ms + entry["t"] * _MS_PER_S
        record: dict[str, Any] = {
            "session_id": session,
            "request_id": f"{session}:{turn}",
            "timestamp": at_ms,
            "input_length": entry["in"],
            "output_length": entry["out"],
            "hash_ids": [f"{scope or session}/{block_id}" for block_id in entry.get("hash_ids", ())],
            "think_time": entry["think_time"] * _MS_PER_S if "think_time" in entry else max(0.0, at_ms - end_ms),
        }
        if records:
            record["wait_on"] = records[-1]["request_id"]
        end_ms = at_ms
        if "api_time" in entry:
            record["recorded_api_time"] = entry["api_time"] * _MS_PER_S
            end_ms += record["recorded_api_time"]
        records.append(record)
    return records


def _spawn(first: dict[str, Any], parent: str, before: dict[str, Any] | None) -> None:
    """A sub-agent starts with fresh context behind the turn that asked for it."""
    first["parent_session_id"] = parent
    if before is not None:
        first["wait_on"] = before["request_id"]
        parent_end_ms = before["timestamp"] + before.get("recorded_api_time", 0.0)
        first["think_time"] = max(0.0, first["timestamp"] - parent_end_ms)


def _join(turn: dict[str, Any], ended: list[tuple[float, str]]) -> None:
    """A turn waits for the sub-agents that had completed when it was recorded."""
    if ended:
        turn["joins"] = [request_id for _, request_id in ended]
        turn["think_time"] = turn["timestamp"] - max(at_ms for at_ms, _ in ended)
