"""One row a request, as CSV or Parquet."""

import csv
from typing import IO

from predictor.des.trace_sim import TraceResult
from predictor.errors import DataUnavailable

COLUMNS = (
    "request_id",
    "replica",
    "arrival_ms",
    "queue_ms",
    "ttft_ms",
    "ttft_from_admission_ms",
    "tpot_ms",
    "e2e_ms",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "preemptions",
)
_WHOLE = frozenset({"replica", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions"})


def columns(result: TraceResult) -> dict[str, list[object]]:
    """The columns of a result, requests in the order of the trace's sending; TPOT is None for one-token answers."""
    measured = result.simulation.requests
    order = measured["id"].argsort(kind="stable")
    table: dict[str, list[object]] = {"request_id": [result.names[int(number)] for number in measured["id"][order]]}
    for name in COLUMNS[1:]:
        values = measured[name][order].tolist()
        table[name] = [int(value) for value in values] if name in _WHOLE else values
    table["tpot_ms"] = [
        value if tokens > 1 else None
        for value, tokens in zip(table["tpot_ms"], measured["output_tokens"][order].tolist(), strict=True)
    ]
    return table


def write_csv(result: TraceResult, sink: IO[str]) -> None:
    """Header and one line a request; an empty field where there is no value."""
    table = columns(result)
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(zip(*(table[name] for name in COLUMNS), strict=True))


def write_parquet(result: TraceResult, sink: IO[bytes]) -> None:
    """The same as Parquet. Raises DataUnavailable where pyarrow is not installed (extra ``parquet``)."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as absent:
        raise DataUnavailable("Parquet needs pyarrow: install inferasim[parquet], or write CSV") from absent
    table = columns(result)
    pyarrow.parquet.write_table(pyarrow.table({name: table[name] for name in COLUMNS}), sink)
