"""Start lines of the four engines: what memory an engine really found, read from its log.

Patterns as printed by vLLM 0.6 to 0.33, SGLang 0.4 to 0.5.23, ATOM ffdf3bb5 and TensorRT-LLM main. The last line of a
kind wins, since engines print a profiling value first; several ranks print the same value, and the least of one kind is
what the engine can use. SGLang prints GiB with the label GB.
"""

import re
from dataclasses import dataclass, replace

from predictor.errors import BadFile


@dataclass(frozen=True, slots=True)
class PoolLog:
    """Figures of one start; None where the log does not say. Sizes are of one GPU.

    ``tokens`` is what the engine printed. vLLM prints ``max concurrency x max_model_len``: for window, hybrid and
    compressed caches that is an equivalent at that length (``tokens_at_context``), not slots.
    """

    engine: str
    tokens: int | None = None
    tokens_at_context: int | None = None
    kv_gib: float | None = None
    weights_gib: float | None = None
    graph_gib: float | None = None
    state_gib: float | None = None
    max_running: int | None = None
    chunk_tokens: int | None = None
    budget_tokens: int | None = None
    block_tokens: int | None = None


_NUMBER = r"([\d.,]+)"
_VLLM_TOKENS = re.compile(rf"KV cache size: {_NUMBER} tokens")
_VLLM_CONTEXT = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request")
_VLLM_KV = re.compile(rf"Available KV cache memory: {_NUMBER} GiB")
_VLLM_WEIGHTS = re.compile(rf"Model loading took {_NUMBER} (?:GiB|GB)")
_VLLM_GRAPH = re.compile(rf"Graph capturing finished in \d+ secs?, took {_NUMBER} GiB")
_VLLM_BUDGET = re.compile(rf"max_num_batched_tokens={_NUMBER}")
_VLLM_BLOCKS = re.compile(rf"# (?:GPU|cuda|rocm) blocks: {_NUMBER}")
_SGLANG_MAX = re.compile(
    r"max_total_num_tokens=(\d+), chunked_prefill_size=(-?\d+|None), max_prefill_tokens=(\d+), "
    r"max_running_requests=(\d+), context_len=(\d+)"
)
_SGLANG_POOL = re.compile(
    rf"KV Cache (?:is allocated|VA upper bound)\. (?:dtype: [^,]+, )?#tokens: (\d+), "
    rf"(?:K size: {_NUMBER} GB, V size: {_NUMBER} GB|KV size: {_NUMBER} GB)"
)
_SGLANG_WEIGHTS = re.compile(rf"Load weight end\..*?mem usage={_NUMBER} GB")
_SGLANG_STATE = re.compile(rf"Mamba Cache is allocated\..*?conv_state size: {_NUMBER}GB, ssm_state size: {_NUMBER}GB")
_ATOM_BUDGET = re.compile(
    rf"Memory budget: .*?cudagraph_est={_NUMBER}GB.*?available_for_kv={_NUMBER}GB, block_bytes=(\d+), "
    r"num_kvcache_blocks=(\d+)"
)
_ATOM_BLOCK = re.compile(r"Concurrent capacity vs context length \(.*?block_size=(\d+)")
_TRT_POOL = re.compile(rf"Allocated {_NUMBER} GiB for max tokens in paged KV cache \((\d+)\)")
_TRT_BLOCK = re.compile(r"tokens per block=(\d+)")


def read_pool_log(text: str) -> PoolLog:
    """Figures of the engine start in ``text``; the engine is told from its lines.

    Raises BadFile where no known line is found.

    >>> read_pool_log("GPU KV cache size: 886,768 tokens, Maximum concurrency for 9,472 tokens per request: 93x").tokens
    886768
    """
    readers = (_vllm, _sglang, _atom, _trtllm)
    found = [log for log in (reader(text) for reader in readers) if log is not None]
    if not found:
        raise BadFile(
            "engine start log: no KV pool line found; expected one of 'KV cache size: N tokens' (vLLM), "
            "'max_total_num_tokens=N' (SGLang), 'Memory budget: ...' (ATOM), "
            "'Allocated X GiB for max tokens in paged KV cache (N)' (TensorRT-LLM)"
        )
    return found[0]


def _number(text: str) -> float:
    return float(text.replace(",", "").rstrip("."))


def _last(pattern: re.Pattern[str], text: str, group: int = 1) -> float | None:
    values = [match.group(group) for match in pattern.finditer(text)]
    return _number(values[-1]) if values else None


def _least(pattern: re.Pattern[str], text: str) -> float | None:
    values = [_number(match.group(1)) for match in pattern.finditer(text)]
    return min(values) if values else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _vllm(text: str) -> PoolLog | None:
    tokens, blocks = _least(_VLLM_TOKENS, text), _least(_VLLM_BLOCKS, text)
    kv_gib = _least(_VLLM_KV, text)
    if tokens is None and blocks is None and kv_gib is None:
        return None
    return PoolLog(
        engine="vLLM",
        tokens=_whole(tokens if tokens is not None else blocks * 16 if blocks is not None else None),
        tokens_at_context=_whole(_last(_VLLM_CONTEXT, text)),
        kv_gib=kv_gib,
        weights_gib=_last(_VLLM_WEIGHTS, text),
        graph_gib=_last(_VLLM_GRAPH, text),
        budget_tokens=_whole(_last(_VLLM_BUDGET, text)),
    )


def _sglang(text: str) -> PoolLog | None:
    limits, pools = list(_SGLANG_MAX.finditer(text)), list(_SGLANG_POOL.finditer(text))
    if not limits and not pools:
        return None
    log = PoolLog(engine="SGLang", weights_gib=_last(_SGLANG_WEIGHTS, text))
    if pools:
        sizes = [_number(size) for size in pools[-1].groups()[1:] if size]
        log = replace(log, tokens=int(pools[-1].group(1)), kv_gib=sum(sizes))
    if state := list(_SGLANG_STATE.finditer(text)):
        log = replace(log, state_gib=_number(state[-1].group(1)) + _number(state[-1].group(2)))
    if limits:  # printed after every clamp, so these win
        total, chunk, budget, running, _ = limits[-1].groups()
        log = replace(
            log,
            tokens=int(total),
            chunk_tokens=None if chunk == "None" else int(chunk),
            budget_tokens=int(budget),
            max_running=int(running),
        )
    return log


def _atom(text: str) -> PoolLog | None:
    budgets = list(_ATOM_BUDGET.finditer(text))
    if not budgets:
        return None
    graph, _, block_bytes, block_count = budgets[-1].groups()
    block = _last(_ATOM_BLOCK, text)
    return PoolLog(
        engine="ATOM",
        tokens=int(int(block_count) * block) if block else None,
        kv_gib=int(block_bytes) * int(block_count) / 2**30,
        graph_gib=_number(graph),
        block_tokens=_whole(block),
    )


def _trtllm(text: str) -> PoolLog | None:
    pools = list(_TRT_POOL.finditer(text))
    if not pools:
        return None
    gib, tokens = pools[-1].groups()  # the first is the profiling pool
    return PoolLog(
        engine="TensorRT-LLM",
        tokens=int(tokens),
        kv_gib=_number(gib),
        block_tokens=_whole(_last(_TRT_BLOCK, text)),
    )
