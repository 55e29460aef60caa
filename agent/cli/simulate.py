"""``inferasim simulate``: a trace on a deployment, request by request."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from agent.cli.deployment_options import with_server


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("simulate", help="Play a request trace on a deployment, request by request.")(with_server(simulate))


def simulate(
    fields: dict[str, Any],
    trace: Annotated[str, typer.Option(help="Mooncake-like trace: JSON lines or array, plain or gzip.")],
    router: Annotated[
        str, typer.Option(help="least-loaded, kv-aware, prefix-hash, round-robin, random or sticky-session.")
    ] = "least-loaded",
    slots: Annotated[int | None, typer.Option(help="Live sessions; recorded arrivals if left out.")] = None,
    think_cap_ms: Annotated[float | None, typer.Option(help="Longest pause between turns, ms.")] = None,
    answers_return: Annotated[bool, typer.Option(help="The next turn holds the server's own answer.")] = False,
    block_tokens: Annotated[int | None, typer.Option(help="Tokens a trace block; inferred if left out.")] = None,
    skip_bad_records: Annotated[bool, typer.Option(help="Leave malformed records out and count them.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of random choices.")] = 0,
    mode: Annotated[str, typer.Option(help="auto, anchored or simulate.")] = "auto",
    anchors: Annotated[str | None, typer.Option(help="Folder or file of anchors to use instead of the cache.")] = None,
    out: Annotated[str | None, typer.Option(help="Write one line a request: .csv or .parquet.")] = None,
    plot: Annotated[str | None, typer.Option(help="Write latencies and timeline as NAME-FIGURE.png or .svg.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Play a request trace on a deployment, request by request."""
    from agent.cli.output import facts, note, print_json
    from agent.simulating import TraceOptions, simulate_once

    options = TraceOptions(trace, slots, think_cap_ms, router, skip_bad_records, answers_return, block_tokens, seed)
    with _progress() as step:
        answer = simulate_once(fields, options, mode=mode, anchors=anchors, out=out, plot=plot, progress=step)
    if json_output:
        print_json(answer)
        return
    rows: list[tuple[str, object]] = [("requests", answer["requests"]), ("GPUs", answer["gpus"])]
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        values = answer[name]
        if values["mean"] is not None:
            shown = ", ".join(f"{statistic} {values[statistic]:,.4g}" for statistic in ("mean", "p50", "p90", "p99"))
            rows.append((name, shown))
    rows += [
        ("output tok/s per GPU", answer["output_tok_s_per_gpu"]),
        ("token hit rate", answer["token_hit_rate"]),
        ("preemptions", answer["preemptions"]),
        ("seconds", answer["wall_ms"] / 1000.0),
    ]
    if answer["skipped_records"]:
        rows.append(("records left out", ", ".join(f"{n} {kind}" for kind, n in answer["skipped_records"].items())))
    facts(f"Trace {trace}", rows)
    for flag in answer["flags"]:
        note(f"note: {flag['message']}")


@contextmanager
def _progress() -> Iterator[Callable[[int], None] | None]:
    """Finished requests on a terminal's stderr; nothing in a pipe."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.completed:,.0f} requests"), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("requests", total=None)
        yield lambda finished: bar.update(task, completed=finished)
