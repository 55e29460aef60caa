"""``vllm bench serve`` and ATOM's ``benchmark_serving``: one JSON object a run, with or without per-request arrays.

Field names from vLLM ``benchmarks/serve.py`` (0.30 to 0.33) and ATOM ``atom/benchmarks/benchmark_serving.py``
(ffdf3bb5). The arrays (``--save-detailed``) are in seconds, the summaries in ms. Neither records widths, precision,
release or engine: ``backend`` names the client's protocol. ``--metadata KEY=VALUE`` pairs stand at the top as text.
"""

from collections.abc import Mapping

from predictor.anchors.import_formats.fields import Json, facts, named_latency, number, numbers, required, whole
from predictor.anchors.import_formats.run import BenchRun, Fact, ParsedFile, RequestTimes
from predictor.errors import BadFile

# --metadata keys people use, and the flag each stands for.
METADATA = {
    "gpu": "gpu",
    "engine": "engine",
    "engine_version": "engine_version",
    "version": "engine_version",
    "tp": "tp",
    "tensor_parallel_size": "tp",
    "ep": "ep",
    "attn_dp": "attn_dp",
    "dcp": "dcp",
    "pp": "pp",
    "weight_dtype": "weight_dtype",
    "kv_dtype": "kv_dtype",
    "prefix_cache": "prefix_cache",
    "length_range": "length_range",
    "max_running": "max_running",
    "token_budget": "token_budget",
}
_WHOLE = frozenset({"tp", "ep", "attn_dp", "dcp", "pp", "max_running", "token_budget"})


def is_vllm(row: Json) -> bool:
    """A result of ``vllm bench serve`` or of a benchmark derived from it."""
    return {"total_token_throughput", "request_throughput", "total_output_tokens"} <= row.keys()


def tool_name(row: Json) -> str:
    """ATOM's copy is told by the statistics of speculation that only it writes."""
    return "ATOM benchmark_serving" if {"concurrency", "acceptance_rate"} <= row.keys() else "vllm bench serve"


def read_vllm(row: Json, origin: str) -> ParsedFile:
    """One run."""
    tool = tool_name(row)
    completed = whole(row, "completed", origin, zero=True)
    if not completed:
        raise BadFile(f"{origin}: completed is {completed}: no request of this run finished")
    failed = whole(row, "failed", origin, zero=True)
    if failed is None:
        prompts = whole(row, "num_prompts", origin)
        failed = max(0, prompts - completed) if prompts else 0
    rate = row.get("request_rate")
    details = details_of(row, origin)
    run = BenchRun(
        origin=origin,
        tool=tool,
        concurrency=whole(row, "max_concurrency", origin),
        requests=completed,
        failed=failed,
        request_rate_per_s=None if rate in (None, "inf") else number(row, "request_rate", origin),
        burstiness=number(row, "burstiness", origin) or 1.0,
        duration_s=required(row, "duration", origin, unit="seconds"),
        ttft=named_latency(row, origin, "ttft"),
        tpot=named_latency(row, origin, "tpot"),
        itl=named_latency(row, origin, "itl"),
        e2e=named_latency(row, origin, "e2el"),
        mean_prompt_tokens=required(row, "total_input_tokens", origin) / completed,
        mean_output_tokens=required(row, "total_output_tokens", origin) / completed,
        requests_per_s=number(row, "request_throughput", origin),
        output_tok_s=number(row, "output_throughput", origin),
        total_tok_s=number(row, "total_token_throughput", origin),
        tokens_per_step=number(row, "spec_decode_acceptance_length", origin) or number(row, "accept_length", origin),
        prompt_range=prompt_range(details),
        details=details,
        recorded=_recorded(row),
    )
    return ParsedFile(tool, runs=(run,))


def details_of(row: Json, origin: str) -> tuple[RequestTimes, ...]:
    """Requests of a detailed file (vLLM, ATOM and SGLang write the same arrays, in seconds); none otherwise."""
    inputs, outputs, ttfts = (numbers(row, key, origin) for key in ("input_lens", "output_lens", "ttfts"))
    gaps = row.get("itls")
    if inputs is None or outputs is None or ttfts is None or not isinstance(gaps, list):
        return ()
    if not len(inputs) == len(outputs) == len(ttfts) == len(gaps):
        raise BadFile(
            f"{origin}: input_lens, output_lens, ttfts and itls have {len(inputs)}, {len(outputs)}, {len(ttfts)} and "
            f"{len(gaps)} entries: the file is not whole"
        )
    found = []
    for index, (prompt, output, ttft) in enumerate(zip(inputs, outputs, ttfts, strict=True)):
        if output < 1.0:
            continue  # a failed request: it has an entry in ``errors``
        each = numbers({f"itls[{index}]": gaps[index]}, f"itls[{index}]", origin) or []
        found.append(RequestTimes(int(prompt), int(output), ttft * 1e3, (ttft + sum(each)) * 1e3))
    return tuple(found)


def _recorded(row: Json) -> Mapping[str, Fact]:
    found = facts((flag, row.get(key)) for key, flag in METADATA.items() if row.get(key) is not None)
    for name in _WHOLE & found.keys():
        text = str(found[name])
        found[name] = int(text) if text.isdigit() else found[name]
    found |= facts([("model_name", row.get("model_id"))])
    if any(key.startswith("spec_decode_") for key in row) or row.get("accept_length"):
        found["speculates"] = True
    else:
        found["speculates"] = False  # the client asks the server for these counters and writes them when there are any
    return found


def prompt_range(details: tuple[RequestTimes, ...]) -> tuple[float, float] | None:
    """Shortest and longest prompt of a detailed run; None without details."""
    lengths = [one.prompt_tokens for one in details]
    return (min(lengths), max(lengths)) if lengths else None
