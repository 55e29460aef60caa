"""Prefix-cache replays of public traces against golden values, integer by integer.

``python -m evals.prefix_cache --json``: every order, policy and capacity of ``traces/golden_hit_rates.json``. Integers
and digests must be equal, rates equal to six places. ``flat_lru_tail_first`` is replayed through
:class:`OrderedMapCache`, an LRU over single blocks that shares no code with the product's cache; on the trace of 94
million block references only with ``--block-by-block`` (three minutes more). ``--small`` leaves that trace out.

Sources of the traces: kvcache-ai/Mooncake, ai-dynamo/dynamo, callanjfox/kv-cache-tester (all Apache-2.0).
"""

import argparse
import hashlib
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals import corpus
from predictor.des.prefix_cache import Eviction, PrefixCache
from predictor.des.replay import (
    Dispatch,
    ReplayHits,
    hit_rates,
    prompt_of,
    recorded_order,
    replay,
    replay_longest,
    round_robin_order,
)
from predictor.workload.block_size import BlockSize
from predictor.workload.blocks import Line
from predictor.workload.json_stream import open_trace
from predictor.workload.trace import TraceReader, TraceRequest

LARGE_TRACE = "agentic_coding_compact.jsonl.gz"
FIRST_HITS = 16


class OrderedMapCache:
    """LRU over single blocks in one ordered map, a prompt touched tail first: the reference for leaf-first LRU."""

    def __init__(self, capacity_blocks: int | None) -> None:
        self.capacity_blocks = capacity_blocks
        self.blocks: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.evicted_blocks = 0

    def use(self, blocks: Sequence[tuple[int, int]]) -> int:
        """Count leading resident blocks, touch all blocks from the tail, evict the least recent; returns the count."""
        resident = self.blocks
        hit = 0
        for block in blocks:
            if block not in resident:
                break
            hit += 1
        for block in reversed(blocks):
            resident[block] = None
            resident.move_to_end(block)
        while self.capacity_blocks is not None and len(resident) > self.capacity_blocks:
            resident.popitem(last=False)
            self.evicted_blocks += 1
        return hit


def block_names(request: TraceRequest, known: dict[Line, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """A prompt's blocks one by one, head first, as (line, depth); ``known`` keeps each line's names."""
    prompt = prompt_of(request)
    stretches = []
    line, end = prompt.line, prompt.blocks
    while line is not None:
        names = known.setdefault(line, [])
        names.extend((line.serial, line.start + index) for index in range(len(names), line.end - line.start))
        stretches.append(names[: end - line.start])
        end, line = line.start, line.parent
    return [name for names in reversed(stretches) for name in names]


def replay_block_by_block(order: Iterable[TraceRequest], capacity_blocks: int | None) -> ReplayHits:
    """A replay through :class:`OrderedMapCache`."""
    cache = OrderedMapCache(capacity_blocks)
    known: dict[Line, list[tuple[int, int]]] = {}
    hits = [(request.row, cache.use(block_names(request, known))) for request in order]
    in_order = tuple(hit for _, hit in hits)
    return ReplayHits(tuple(hit for _, hit in sorted(hits)), in_order, cache.evicted_blocks, len(cache.blocks))


class Orders:
    """The orders of one trace, each made once."""

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self.requests = requests
        self._made: dict[str, Dispatch | Sequence[TraceRequest]] = {"file": requests}

    def order(self, name: str) -> Dispatch | Sequence[TraceRequest]:
        """``file``, ``rr-N`` or ``recorded-N``."""
        if name not in self._made:
            kind, slots = name.split("-")
            requests, count = self.requests, int(slots)
            self._made[name] = (round_robin_order if kind == "rr" else recorded_order)(requests, count)
        return self._made[name]


def run_golden(orders: Orders, golden: Mapping[str, Any], size: BlockSize, by_block: bool = True) -> dict[str, Any]:
    """Our values for one golden run, under the golden file's keys; ``by_block``: tail-first runs by the ordered map."""
    name, capacity, policy = golden["order"], golden["capacity_blocks"], golden["policy"]
    result: dict[str, Any] = {}
    if name.startswith("longest-"):
        hits = replay_longest(orders.requests, int(name.split("-")[1]), PrefixCache(capacity, _eviction(policy)))
    else:
        order = orders.order(name)
        if isinstance(order, Dispatch):
            result["makespan_ms"] = int(order.makespan_ms)
            result["dispatch_sha256"] = _digest(map(int, order.dispatch_ms))
            order = order.order
        if by_block and policy == "flat_lru_tail_first":
            hits = replay_block_by_block(order, capacity)
        else:
            hits = replay(order, PrefixCache(capacity, _eviction(policy)))
    rates = hit_rates(orders.requests, hits.hit_blocks_by_row, size)
    in_order = hits.hit_blocks_in_order
    return result | {
        "order": name,
        "policy": policy,
        "capacity_blocks": capacity,
        "hit_blocks": rates.hit_blocks,
        "total_blocks": rates.total_blocks,
        "block_hit_rate": rates.block_frac,
        "hit_tokens": rates.hit_tokens,
        "total_tokens": rates.total_tokens,
        "token_hit_rate": rates.token_frac,
        "engine_hit_tokens": rates.engine_hit_tokens,
        "engine_token_hit_rate": rates.engine_token_frac,
        "mean_request_token_hit_rate": rates.mean_request_token_frac,
        "evicted_blocks": hits.evicted_blocks,
        "resident_at_end": hits.resident_blocks,
        "hits_sha256": _digest(hits.hit_blocks_by_row),
        "first_hits": list(in_order[:FIRST_HITS]),
        "cumulative_hits_at_tenths": [sum(in_order[: len(in_order) * tenth // 10]) for tenth in range(1, 11)],
    }


def differences(golden: Mapping[str, Any], ours: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Keys whose values differ: integers and digests exactly, rates to six places."""
    wrong = []
    for key, expected in golden.items():
        found = ours.get(key)
        rounded = round(found, 6) if isinstance(found, float) and isinstance(expected, float) else found
        if rounded != expected:
            wrong.append({"key": key, "expected": expected, "found": found})
    return wrong


def evaluate(args: argparse.Namespace) -> dict[str, Any]:
    """Replay every golden run and compare every value; ``worst`` lists the first twenty that differ."""
    folder = corpus.data_dir(args.corpus) / "traces"
    file = folder / "golden_hit_rates.json"
    if not file.is_file():
        raise corpus.CorpusAbsent(f"{file} is absent: pass --corpus DIR with the folder 'traces' in it")
    goldens = json.loads(file.read_text())["traces"]
    compared, worst, traces = 0, [], []
    for name, golden in goldens.items():
        if args.small and name == LARGE_TRACE:
            continue
        begun = time.perf_counter()
        counted, wrong = _compare_trace(folder / name, golden, args.block_by_block or name != LARGE_TRACE)
        compared += counted
        worst += wrong
        seconds = round(time.perf_counter() - begun, 2)
        traces.append(
            {"trace": name, "runs": len(golden["runs"]), "values": counted, "wrong": len(wrong), "wall_s": seconds}
        )
        print(f"{name}: {counted} values, {len(wrong)} wrong, {seconds} s", file=sys.stderr)
    return {"compared": compared, "mismatches": len(worst), "worst": worst[:20], "traces": traces}


def _compare_trace(path: Path, golden: Mapping[str, Any], by_block: bool) -> tuple[int, list[dict[str, Any]]]:
    reader = TraceReader(open_trace(path), name=path.name)
    requests = list(reader)
    size = reader.block_size
    assert size is not None, "every golden trace has block ids"
    wrong = [
        {"trace": path.name, **difference}
        for difference in differences(
            {"block_size": golden["block_size"], "tail": golden["tail"]},
            {"block_size": size.tokens, "tail": size.tail.value},
        )
    ]
    counted = 2
    orders = Orders(requests)
    for run in golden["runs"]:
        counted += len(run)
        where = {key: run[key] for key in ("order", "policy", "capacity_blocks")}
        found = run_golden(orders, run, size, by_block)
        wrong += [{"trace": path.name, **where, **difference} for difference in differences(run, found)]
    return counted, wrong


def _eviction(policy: str) -> Eviction:
    return Eviction.FLAT_LRU if policy == "flat_lru" else Eviction.LEAF_LRU


def _digest(values: Iterable[int]) -> str:
    return hashlib.sha256(",".join(map(str, values)).encode()).hexdigest()


def main() -> int:
    """Command line."""
    arguments = corpus.parser("Prefix-cache replays of public traces against golden hit rates")
    arguments.add_argument("--small", action="store_true", help="leave out the trace of 94 million block references")
    arguments.add_argument("--block-by-block", action="store_true", help="the ordered map on that trace too")
    return corpus.run(evaluate, arguments)


if __name__ == "__main__":
    sys.exit(main())
