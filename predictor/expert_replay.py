"""Replay of a recorded routing log on any EP layout, with or without replicas of hot experts (paper App. B.3).

A decode batch of ``b`` is ``b`` tokens of one recorded decode step, each of a different request; a prefill chunk is a
contiguous run of one prompt. Every window and every layer gives the routed rows and the distinct experts of each rank;
the factors are the means over layers and windows of the busiest rank over the mean rank. With ``R`` replicas the copies
go greedily to the experts with the most long-run load per copy, and slots go, heaviest first, to the least loaded rank
that has room (EPLB); the tokens of an expert are dealt to its copies in turn.

Tables of replays, one TOML file a checkpoint, lie in ``profiles/expert_tables``; those shipped are published figures.
"""

import tomllib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.errors import BadFile, BadInput, DataUnavailable, unknown_name
from predictor.expert_load import Phase, RecordedPoint, RecordedRouting, rank_starts
from predictor.routing_log import RoutingLog, counts

FloatArray = npt.NDArray[np.float64]

TABLES = Path(__file__).parent / "profiles" / "expert_tables"


def replay(log: RoutingLog, ep: int, phase: Phase, tokens: int, redundant: int = 0) -> RecordedPoint:
    """Busiest-rank factors of the log at one layout, phase and token count."""
    windows = log.windows(phase, tokens)
    if not windows:
        raise DataUnavailable(f"{log.source}: no {phase} part of the log holds {tokens} tokens")
    if redundant and (log.experts + redundant) % ep:
        raise BadInput(f"redundant is {redundant}: {log.experts} experts and replicas do not divide by EP{ep}")
    if ep == 1:
        return RecordedPoint(ep, phase, tokens, 1.0, 1.0, redundant)
    placements = _placements(log, ep, redundant)
    busiest_rows, mean_rows, busiest_read, mean_read = 0.0, 0.0, 0.0, 0.0
    for window in windows:
        for layer, routed in enumerate(counts(window, log.experts)):
            rows, read = rank_loads(routed, placements[layer], ep)
            busiest_rows, mean_rows = busiest_rows + rows.max(), mean_rows + rows.mean()
            busiest_read, mean_read = busiest_read + read.max(), mean_read + read.mean()
    return RecordedPoint(ep, phase, tokens, float(busiest_rows / mean_rows), float(busiest_read / mean_read), redundant)


def replay_table(
    log: RoutingLog,
    model: str,
    prompts: str,
    eps: Iterable[int],
    decode_tokens: Iterable[int],
    prefill_tokens: Iterable[int],
    redundant: Iterable[int] = (0,),
) -> RecordedRouting:
    """Table of factors over layouts, phases and token counts that the log can fill; the others are left out."""
    sizes: list[tuple[Phase, int]] = [("decode", t) for t in decode_tokens] + [("prefill", t) for t in prefill_tokens]
    points = [
        replay(log, ep, phase, tokens, extra)
        for ep in eps
        for extra in redundant
        for phase, tokens in sizes
        if log.windows(phase, tokens, 1) and (extra == 0 or (log.experts + extra) % ep == 0)
    ]
    return RecordedRouting(model, prompts, log.experts, log.topk, tuple(points), log.source)


# ---- placement -----------------------------------------------------------------------------------------------------

Slots = tuple[tuple[int, int], ...]  # (expert, rank) of each physical slot


def _placements(log: RoutingLog, ep: int, redundant: int) -> list[Slots]:
    if redundant:
        return [balanced_slots(load, ep, redundant) for load in log.loads()]
    starts = rank_starts(log.experts, ep)
    ranks = np.searchsorted(starts, np.arange(log.experts), side="right") - 1
    return [tuple((expert, int(rank)) for expert, rank in enumerate(ranks))] * log.layers


def balanced_slots(load: FloatArray, ep: int, redundant: int) -> Slots:
    """EPLB of one layer on its long-run load: greedy copies, then heaviest slot to the least loaded rank with room.

    >>> balanced_slots(np.array([8.0, 1.0, 1.0]), 2, 1)
    ((0, 0), (0, 1), (1, 0), (2, 1))
    """
    copies = np.ones(len(load), dtype=np.int64)
    for _ in range(redundant):
        copies[int(np.argmax(load / copies))] += 1
    share = load / copies
    slots = sorted((expert for expert, n in enumerate(copies) for _ in range(n)), key=lambda e: (-share[e], e))
    room = [-(-len(slots) // ep)] * ep
    total = [0.0] * ep
    placed = []
    for expert in slots:
        rank = min((r for r in range(ep) if room[r]), key=lambda r: (total[r], r))
        room[rank] -= 1
        total[rank] += float(share[expert])
        placed.append((expert, rank))
    return tuple(placed)


def rank_loads(routed: npt.NDArray[np.int64], slots: Slots, ep: int) -> tuple[FloatArray, FloatArray]:
    """Rows and distinct experts of each rank; an expert's rows are dealt to its copies in turn."""
    expert = np.array([slot[0] for slot in slots])
    rank = np.array([slot[1] for slot in slots])
    copies = np.bincount(expert, minlength=len(routed))
    order = np.argsort(expert, kind="stable")
    first = np.zeros(len(routed), dtype=np.int64)
    first[1:] = np.cumsum(copies)[:-1]
    turn = np.empty(len(slots), dtype=np.int64)
    turn[order] = np.arange(len(slots)) - first[expert[order]]
    rows = routed[expert] // copies[expert] + (turn < routed[expert] % copies[expert])
    read = (rows > 0).astype(np.float64)
    return np.asarray(np.bincount(rank, rows, minlength=ep), float), np.asarray(
        np.bincount(rank, read, minlength=ep), float
    )


# ---- tables as files -----------------------------------------------------------------------------------------------


def read_tables(path: Path) -> tuple[RecordedRouting, ...]:
    """Tables of one checkpoint, one a kind of prompt."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return tuple(_table(content, entry) for entry in content["recording"])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadFile(f"{path}: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{path}: not an expert table ({error!r})") from error


def _table(content: dict[str, Any], entry: dict[str, Any]) -> RecordedRouting:
    points = tuple(RecordedPoint(**point) for point in entry["points"])
    if any(point.phase not in ("decode", "prefill") or point.i_n < 1 for point in points):
        raise ValueError("a point needs phase decode or prefill and i_n of at least 1")
    return RecordedRouting(
        content["model"], entry["prompts"], content["experts"], content["topk"], points, content["source"]
    )


def tables_toml(tables: Iterable[RecordedRouting]) -> str:
    """TOML text of tables of one checkpoint; :func:`read_tables` reads it back."""
    tables = tuple(tables)
    head = tables[0]
    lines = [f'model = "{head.model}"', f"experts = {head.experts}", f"topk = {head.topk}", f'source = "{head.source}"']
    for table in tables:
        lines += ["", "[[recording]]", f'prompts = "{table.prompts}"', "points = ["]
        for p in table.points:
            read = "" if p.i_d is None else f", i_d = {p.i_d:.4f}"
            lines.append(
                f'  {{ ep = {p.ep}, phase = "{p.phase}", tokens = {p.tokens}, redundant = {p.redundant}, '
                f"i_n = {p.i_n:.4f}{read} }},"
            )
        lines.append("]")
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=64)
def recorded(model: str, prompts: str) -> RecordedRouting:
    """Shipped table of a checkpoint on one kind of prompt (random, sonnet, code).

    Raises UnknownName with the names that are shipped.
    """
    shipped = _shipped()
    if model not in shipped:
        raise unknown_name("recorded routing of", model, shipped)
    by_prompts = {table.prompts: table for table in shipped[model]}
    if prompts not in by_prompts:
        raise unknown_name(f"prompts of the recording of {model}:", prompts, by_prompts)
    return by_prompts[prompts]


@lru_cache(maxsize=1)
def _shipped() -> dict[str, tuple[RecordedRouting, ...]]:
    tables = [read_tables(path) for path in sorted(TABLES.glob("*.toml"))]
    return {entries[0].model: entries for entries in tables}
