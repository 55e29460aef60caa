"""SGLang's ``bench_serving`` (one JSON line a run) and ``bench_one_batch`` (one line a batch and shape).

Field names from ``sglang/benchmark/serving.py`` and ``one_batch.py``, 0.5.23. ``server_info`` holds the server's own
arguments after every clamp, the best record of a configuration among all formats. ``bench_one_batch`` times steps
without server and scheduler, in seconds.
"""

from collections.abc import Mapping

from predictor.anchors.import_formats.fields import Json, facts, named_latency, number, required, whole
from predictor.anchors.import_formats.run import BenchRun, Fact, ParsedFile, StepRun
from predictor.anchors.import_formats.vllm import details_of, prompt_range
from predictor.errors import BadFile

TOOL = "SGLang bench_serving"
ONE_BATCH = "SGLang bench_one_batch"
# --quantization values that say what the weights are; None (the checkpoint's own) says nothing.
QUANTIZATION = {"fp8": "fp8", "w8a8_fp8": "fp8", "mxfp4": "fp4", "quark_mxfp4": "fp4", "modelopt_fp4": "fp4"}
KV_DTYPE = {"fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "bf16": "bf16", "bfloat16": "bf16"}
SPECULATION = {"EAGLE": "mtp", "NEXTN": "mtp", "EAGLE3": "eagle3", "DSPARK": "dspark", "NGRAM": "ngram"}


def is_bench_serving(row: Json) -> bool:
    """A line of ``bench_serving``."""
    return {"total_throughput", "random_input_len", "mean_e2e_latency_ms"} <= row.keys()


def is_one_batch(row: Json) -> bool:
    """A line of ``bench_one_batch``."""
    return {"batch_size", "input_len", "prefill_latency"} <= row.keys()


def is_one_batch_server(row: Json) -> bool:
    """A line of ``bench_one_batch_server``, which has the server in it and no step time."""
    return {"batch_size", "input_len", "last_ttft", "last_gen_throughput"} <= row.keys()


def read_bench_serving(row: Json, origin: str) -> ParsedFile:
    """One run."""
    completed = whole(row, "completed", origin, zero=True)
    if not completed:
        raise BadFile(f"{origin}: completed is {completed}: no request of this run finished")
    rate = row.get("request_rate")
    if rate == "trace":
        raise BadFile(f"{origin}: request_rate is 'trace': a replayed trace has no single load to solve steps from")
    per_second = (
        None if rate is None or str(rate).lower() in ("inf", "infinity") else number(row, "request_rate", origin)
    )
    report = row.get("cache_report")
    hit = number(report, "cache_hit_rate_pct", origin, zero=True) if isinstance(report, Mapping) else None
    details = details_of(row, origin)
    run = BenchRun(
        origin=origin,
        tool=TOOL,
        concurrency=whole(row, "max_concurrency", origin),
        requests=completed,
        request_rate_per_s=per_second,
        duration_s=required(row, "duration", origin, unit="seconds"),
        ttft=named_latency(row, origin, "ttft"),
        tpot=named_latency(row, origin, "tpot"),
        itl=named_latency(row, origin, "itl"),
        e2e=named_latency(row, origin, "e2e_latency"),
        mean_prompt_tokens=required(row, "total_input_tokens", origin) / completed,
        mean_output_tokens=required(row, "total_output_tokens", origin) / completed,
        requests_per_s=number(row, "request_throughput", origin),
        output_tok_s=number(row, "output_throughput", origin),
        total_tok_s=number(row, "total_throughput", origin),
        tokens_per_step=number(row, "accept_length", origin),
        cached_prompt_frac=None if hit is None else hit / 100.0,
        prompt_range=prompt_range(details),
        details=details,
        recorded=_recorded(row, hit),
    )
    return ParsedFile(TOOL, runs=(run,))


def read_one_batch(row: Json, origin: str) -> ParsedFile:
    """Steps at one batch and shape."""
    decode = number(row, "median_decode_latency", origin, unit="seconds")
    if decode is None:
        raise BadFile(
            f"{origin}: field median_decode_latency is missing: run bench_one_batch with --output-len above 1"
        )
    step = StepRun(
        origin=origin,
        tool=ONE_BATCH,
        batch=whole(row, "batch_size", origin) or 0,
        prompt_tokens=whole(row, "input_len", origin) or 0,
        output_tokens=whole(row, "output_len", origin) or 0,
        prefill_ms=required(row, "prefill_latency", origin, unit="seconds") * 1e3,
        decode_step_ms=decode * 1e3,
        # It loads no server and no radix tree, and makes its own prompts.
        recorded=facts([("engine", "SGLang"), ("prefix_cache", "off"), ("speculates", False)]),
    )
    return ParsedFile(ONE_BATCH, steps=(step,))


def refuse_one_batch_server(row: Json, origin: str) -> ParsedFile:
    """Its latencies hold the server, one shot of prefill and decode together: no step can be told apart."""
    raise BadFile(
        f"{origin}: bench_one_batch_server times a whole batch through the server and reports no step; "
        "use bench_one_batch, or bench_serving at several loads"
    )


def _recorded(row: Json, hit_pct: float | None) -> dict[str, Fact]:
    found = facts(
        [("isl", _above_zero(row.get("random_input_len"))), ("osl", _above_zero(row.get("random_output_len")))]
    )
    ratio = row.get("random_range_ratio")
    if str(row.get("dataset_name", "")).startswith("random") and isinstance(ratio, int | float):
        found["length_range"] = float(ratio)  # lengths are drawn on [ratio · n, n]
    if hit_pct is not None and hit_pct == 0.0:
        found["prefix_cache"] = "cold"
    info = row.get("server_info")
    found |= server_facts(info) if isinstance(info, Mapping) else facts([("engine", _engine_of(row))])
    if "speculates" not in found:
        found["speculates"] = row.get("accept_length") is not None
    return found


def _engine_of(row: Json) -> str | None:
    """Only its own protocol tells the engine; the others are spoken by several."""
    return "SGLang" if row.get("backend") == "sglang" else None


def server_facts(info: Mapping[str, object]) -> dict[str, Fact]:
    """Facts of an SGLang server's arguments; what is left to the checkpoint or to ``auto`` says nothing."""
    ranks = info.get("dp_size") if info.get("enable_dp_attention") else info.get("attn_dp_size")
    method = SPECULATION.get(str(info.get("speculative_algorithm")).upper())
    found = facts(
        [
            ("engine", "SGLang"),
            ("engine_version", info.get("version")),
            ("model_name", info.get("served_model_name") or info.get("model_path")),
            ("tp", info.get("tp_size")),
            ("ep", info.get("ep_size")),
            ("pp", info.get("pp_size")),
            ("dcp", info.get("dcp_size")),
            ("attn_dp", ranks),
            ("weight_dtype", QUANTIZATION.get(str(info.get("quantization")))),
            ("kv_dtype", KV_DTYPE.get(str(info.get("kv_cache_dtype")))),
            ("prefix_cache", "off" if info.get("disable_radix_cache") is True else None),
            ("max_running", _above_zero(info.get("max_running_requests"))),
            ("token_budget", _above_zero(info.get("max_prefill_tokens"))),
            ("chunk_size", _above_zero(info.get("chunked_prefill_size"))),
            ("kv_pool_tokens", _above_zero(info.get("max_total_num_tokens"))),
            ("graph_mode", "none" if info.get("disable_cuda_graph") is True else None),
            ("attention_backend", info.get("attention_backend")),
            ("moe_backend", _set(info.get("moe_runner_backend"))),
            ("a2a_backend", _set(info.get("moe_a2a_backend"))),
            ("spec_method", method),
            ("spec_depth", info.get("speculative_num_steps") if method else None),
            ("speculates", bool(method)),
        ]
    )
    if "load_format" in info:
        found["real_weights"] = info.get("load_format") != "dummy"
    replicas = info.get("dp_size")
    if not info.get("enable_dp_attention") and isinstance(replicas, int) and replicas > 1:
        found["replicas"] = replicas
    return found


def _above_zero(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _set(value: object) -> str | None:
    return value if isinstance(value, str) and value not in ("auto", "") else None
