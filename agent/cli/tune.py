"""``inferasim tune``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agent.search import Trial

EXIT_NOTHING_LEGAL = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune", help="Search for the best deployment of a model on a cluster.")(tune)


def tune(
    model: Annotated[str, typer.Option(help="Model name, or the path of a Hugging Face config.json.")],
    cluster: Annotated[str, typer.Option(help="GPU:N or GPU:NxNODES, such as MI355X:8 or H200:8x2.")],
    engine: Annotated[str, typer.Option(help="vllm, sglang, atom or trtllm.")],
    objective: Annotated[str, typer.Option(help="See `inferasim objectives`.")] = "output_tok_s_per_gpu",
    slo: Annotated[list[str] | None, typer.Option(help="METRIC<=NUMBER or METRIC>=NUMBER; may repeat.")] = None,
    pin: Annotated[list[str] | None, typer.Option(help="LEVER=VALUE kept fixed; may repeat.")] = None,
    free: Annotated[list[str] | None, typer.Option(help="Lever to open, or load, or precision; may repeat.")] = None,
    validated: Annotated[list[str] | None, typer.Option(help="Weight format that may be used; may repeat.")] = None,
    isl: Annotated[int, typer.Option(help="Prompt tokens.")] = 1024,
    osl: Annotated[int, typer.Option(help="Output tokens.")] = 1024,
    concurrency: Annotated[int, typer.Option(help="Closed-loop clients over the whole deployment.")] = 64,
    length_range: Annotated[float, typer.Option(help="Shortest length over nominal; 1 is fixed.")] = 1.0,
    prefix_hit: Annotated[float, typer.Option(help="Share of the prompt already cached.")] = 0.0,
    engine_version: Annotated[str, typer.Option(help="Engine release; the newest profile if left out.")] = "",
    budget: Annotated[int, typer.Option(help="Trials at most.")] = 300,
    seed_only: Annotated[bool, typer.Option("--seed-only", help="Deterministic search without an LLM.")] = False,
    ledger: Annotated[str | None, typer.Option(help="File or postgresql:// URL of the ledger.")] = None,
    anchors: Annotated[str | None, typer.Option(help="Folder or file of anchors to use instead of the cache.")] = None,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search for the best deployment of a model on a cluster."""
    from agent.cli.output import print_json
    from agent.predict_request import validated as checked
    from agent.request import TuningRequest
    from agent.tune import tune as run
    from predictor.errors import BadInput

    if not seed_only:
        raise BadInput("--seed-only is left out: this release searches without an LLM only; add --seed-only")
    if jobs < 1:
        raise BadInput(f"jobs {jobs}: must be at least 1")
    request = checked(
        TuningRequest,
        model=model,
        cluster=cluster,
        engine=engine,
        engine_version=engine_version,
        objective=objective,
        slos=tuple(slo or ()),
        isl=isl,
        osl=osl,
        concurrency=concurrency,
        length_range=length_range,
        prefix_hit=prefix_hit,
        pins=tuple(pin or ()),
        free=tuple(free or ()),
        validated=tuple(validated or ()),
        budget=budget,
    )
    with _progress(budget) as step:
        outcome = run(request, ledger_url=ledger, anchors=anchors, jobs=jobs, progress=step)
    answer = outcome.as_json()
    if json_output:
        print_json(answer)
    else:
        from agent.report import show_tuning

        first = next((trial for trial in outcome.result.trials if trial.origin == "baseline"), None)
        show_tuning(answer, None if first is None else {"levers": first.levers, "score": first.judged.score})
    if outcome.result.best is None:
        raise typer.Exit(EXIT_NOTHING_LEGAL)


@contextmanager
def _progress(budget: int) -> Iterator[Callable[["Trial"], None] | None]:
    """A progress bar on a terminal's stderr; nothing in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("trials", total=budget)

        def advance(trial: "Trial") -> None:
            if trial.judged.prediction is not None:
                progress.advance(task)

        yield advance
