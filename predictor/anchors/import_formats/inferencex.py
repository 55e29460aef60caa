"""InferenceX ``agg_*.json``: one object a run, with the configuration beside the figures.

Names from ``utils/process_result.py`` (843c6254). Latencies are **seconds**, though the harness measured ms;
``*_intvty`` is 1000/TPOT of the same statistic. Fixed-length runs draw lengths on 80–100% of nominal and send ten
requests a client (``benchmarks/benchmark_lib.sh``: random range ratio 0.8, prompts = 10 × concurrency).
"""

from predictor.anchors.import_formats.fields import Json, facts, named_latency, number, whole
from predictor.anchors.import_formats.run import BenchRun, Fact, ParsedFile
from predictor.errors import BadFile

TOOL = "InferenceX"
LENGTH_RANGE = 0.8
REQUESTS_PER_CLIENT = 10
ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "atom": "ATOM", "trt": "TensorRT-LLM", "trtllm": "TensorRT-LLM"}
DTYPES = {"bf16": "bf16", "fp8": "fp8", "fp4": "fp4", "mxfp4": "fp4", "nvfp4": "fp4"}
SPECULATION = {"none": None, "off": None, "false": None, "mtp": "mtp", "eagle": "eagle3", "eagle3": "eagle3"}


def is_inferencex(row: Json) -> bool:
    """A row of InferenceX."""
    return {"hw", "conc", "framework", "tput_per_gpu"} <= row.keys()


def read_inferencex(row: Json, origin: str) -> ParsedFile:
    """One run of one colocated replica; splits and replayed traces are refused with the reason."""
    if _true(row.get("disagg")) or _true(row.get("is_multinode")):
        raise BadFile(
            f"{origin}: a disaggregated or multi-node run: its throughputs divide by the GPUs of one pool and its TTFT "
            "holds a hand-off; anchors are made of colocated runs on one node"
        )
    if "scenario_type" in row and "isl" not in row:
        raise BadFile(
            f"{origin}: scenario_type {row['scenario_type']!r}: a replayed trace has no single shape to solve"
        )
    gpus = (whole(row, "tp", origin) or 1) * (whole(row, "pp", origin) or 1)
    output = number(row, "output_tput_per_gpu", origin)
    total = number(row, "tput_per_gpu", origin)
    osl = whole(row, "osl", origin)
    mean_output = None if osl is None else osl * (1.0 + LENGTH_RANGE) / 2.0
    concurrency = whole(row, "conc", origin)
    run = BenchRun(
        origin=origin,
        tool=TOOL,
        concurrency=concurrency,
        requests=(concurrency or 1) * REQUESTS_PER_CLIENT,
        ttft=named_latency(row, origin, "ttft", "", 1e3),
        tpot=named_latency(row, origin, "tpot", "", 1e3),
        itl=named_latency(row, origin, "itl", "", 1e3),
        e2e=named_latency(row, origin, "e2el", "", 1e3),
        output_tok_s=None if output is None else output * gpus,
        total_tok_s=None if total is None else total * gpus,
        requests_per_s=None if output is None or not mean_output else output * gpus / mean_output,
        recorded=_recorded(row, origin),
    )
    return ParsedFile(TOOL, runs=(run,))


def _recorded(row: Json, origin: str) -> dict[str, Fact]:
    framework = str(row.get("framework", "")).lower()
    engine = next((name for key, name in ENGINES.items() if framework in (key, f"dynamo-{key}")), None)
    dtype = DTYPES.get(str(row.get("precision", "")).lower())
    tp = whole(row, "tp", origin)
    spec = str(row.get("spec_decoding", row.get("mtp", "none")) or "none").lower()
    return facts(
        [
            ("gpu", str(row.get("hw", "")).split("-")[0].upper()),
            ("engine", engine),
            ("engine_version", _image_version(str(row.get("image", "")))),
            ("model_name", row.get("model")),
            ("tp", tp),
            ("ep", whole(row, "ep", origin)),
            ("pp", whole(row, "pp", origin)),
            ("dcp", whole(row, "dcp_size", origin)),
            ("attn_dp", (tp if _true(row["dp_attention"]) else 1) if "dp_attention" in row else None),
            ("weight_dtype", dtype),
            ("spec_method", SPECULATION.get(spec, spec) or "none"),
            ("speculates", SPECULATION.get(spec, spec) is not None),
            ("isl", whole(row, "isl", origin)),
            ("osl", whole(row, "osl", origin)),
            ("length_range", LENGTH_RANGE),
        ]
    )


def _image_version(image: str) -> str | None:
    """Tag of a container image; a tag names a build better than a release does."""
    name, _, tag = image.rpartition(":")
    return tag if name and tag and "/" not in tag else None


def _true(value: object) -> bool:
    """Flags come as booleans or as text."""
    return value is True or str(value).lower() in ("true", "1", "yes", "on")
