"""Which tool wrote a file: told from the fields it holds, in a fixed order, and never from its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from predictor.anchors.import_formats import aiperf, csv_table, guidellm, inferencex, sglang, vllm
from predictor.anchors.import_formats.fields import Json, load_json, load_jsonl, short
from predictor.anchors.import_formats.run import ParsedFile
from predictor.errors import BadFile


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of JSON result: how to tell it and how to read one object of it."""

    name: str
    tells: Callable[[Json], bool]
    read: Callable[[Json, str], ParsedFile]


# The narrower test first: InferenceX, SGLang and AIPerf results also hold fields of others.
FORMATS: tuple[Format, ...] = (
    Format("InferenceX agg_*.json", inferencex.is_inferencex, inferencex.read_inferencex),
    Format("SGLang bench_serving", sglang.is_bench_serving, sglang.read_bench_serving),
    Format("SGLang bench_one_batch", sglang.is_one_batch, sglang.read_one_batch),
    Format("SGLang bench_one_batch_server", sglang.is_one_batch_server, sglang.refuse_one_batch_server),
    Format("AIPerf summary", aiperf.is_summary, aiperf.read_summary),
    Format("vllm bench serve, ATOM", vllm.is_vllm, vllm.read_vllm),
    Format("GuideLLM report", guidellm.is_guidellm, guidellm.read_guidellm),
)
KNOWN = ", ".join((*(one.name for one in FORMATS), "AIPerf per-request JSON lines", "CSV with a concurrency column"))


def read_benchmark(text: str, origin: str) -> ParsedFile:
    """Runs or steps of one file's text; ``origin`` (its name) leads every error.

    >>> read_benchmark("", "empty.json")
    Traceback (most recent call last):
    predictor.errors.BadFile: empty.json: is empty
    """
    if not text.strip():
        raise BadFile(f"{origin}: is empty")
    if text.lstrip("\ufeff \n\r\t")[:1] not in "{[":
        if csv_table.is_csv(text):
            return csv_table.read_csv(text, origin)
        raise BadFile(f"{origin}: neither JSON nor a CSV with a concurrency column and latencies; known: {KNOWN}")
    rows = _objects(text, origin)
    if all(aiperf.is_record(row) for _, row in rows):
        return aiperf.read_records(rows, origin)
    parsed = [_read(row, where) for where, row in rows]
    tools = sorted({one.tool for one in parsed})
    if len(tools) > 1:
        raise BadFile(f"{origin}: mixes results of {' and '.join(tools)}; import them apart")
    return ParsedFile(
        tools[0], tuple(run for one in parsed for run in one.runs), tuple(step for one in parsed for step in one.steps)
    )


def _read(row: Json, where: str) -> ParsedFile:
    for one in FORMATS:
        if one.tells(row):
            return one.read(row, where)
    raise BadFile(f"{where}: no known benchmark result (its fields: {short(sorted(row)[:6])}); known: {KNOWN}")


def _objects(text: str, origin: str) -> list[tuple[str, Json]]:
    """The objects of a JSON document, of a list in one, or of JSON lines."""
    lines = [line for line in text.splitlines() if line.strip()]
    as_lines = len(lines) > 1 and lines[0].lstrip().startswith("{") and lines[0].rstrip().endswith("}")
    found = load_jsonl(text, origin) if as_lines else [(origin, load_json(text, origin))]
    if len(found) == 1 and isinstance(found[0][1], list):
        found = [(f"{origin} entry {i}", one) for i, one in enumerate(found[0][1], start=1)]
    if not found:
        raise BadFile(f"{origin}: holds no result")
    for where, one in found:
        if not isinstance(one, Mapping):
            raise BadFile(f"{where}: expected a JSON object, found {short(one)}")
    return [(where, one) for where, one in found if isinstance(one, Mapping)]
