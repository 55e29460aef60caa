"""``inferasim tune``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agent.llm.session import Session
    from agent.llm.text_request import Reading
    from agent.request import TuningRequest
    from agent.search import Trial
    from agent.tune import Planner

EXIT_NOTHING_LEGAL = 1
EXIT_INTERRUPTED = 130
Say = Callable[[str], None]
DEFAULT_OBJECTIVE = "output_tok_s_per_gpu"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("tune", help="Search for the best deployment of a model on a cluster.")(tune)


def tune(
    text: Annotated[str | None, typer.Argument(help="What to tune, in words; options win over it.")] = None,
    request_file: Annotated[str | None, typer.Option("--request", help="TOML or JSON file with the request.")] = None,
    model: Annotated[str | None, typer.Option(help="Model name, or the path of a Hugging Face config.json.")] = None,
    cluster: Annotated[str | None, typer.Option(help="GPU:N or GPU:NxNODES, such as MI355X:8 or H200:8x2.")] = None,
    engine: Annotated[str | None, typer.Option(help="vllm, sglang, atom or trtllm.")] = None,
    objective: Annotated[str | None, typer.Option(help=f"{DEFAULT_OBJECTIVE}; see `inferasim objectives`.")] = None,
    slo: Annotated[list[str] | None, typer.Option(help="METRIC<=NUMBER or METRIC>=NUMBER; may repeat.")] = None,
    pin: Annotated[list[str] | None, typer.Option(help="LEVER=VALUE kept fixed; may repeat.")] = None,
    free: Annotated[list[str] | None, typer.Option(help="Lever to open, or load, or precision; may repeat.")] = None,
    validated: Annotated[list[str] | None, typer.Option(help="Weight format that may be used; may repeat.")] = None,
    isl: Annotated[int | None, typer.Option(help="Prompt tokens; 1024 if left out.")] = None,
    osl: Annotated[int | None, typer.Option(help="Output tokens; 1024 if left out.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Closed-loop clients altogether; 64 if left out.")] = None,
    trace: Annotated[str | None, typer.Option(help="Request trace whose mean lengths, rate and reuse to take.")] = None,
    length_range: Annotated[float | None, typer.Option(help="Shortest length over nominal; 1, fixed.")] = None,
    prefix_hit: Annotated[float | None, typer.Option(help="Share of the prompt already cached; 0.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Engine release; the anchors' or the newest.")] = None,
    usd_per_gpu_h: Annotated[float | None, typer.Option(help="Price of a GPU-hour, for usd_per_mtok.")] = None,
    budget: Annotated[int | None, typer.Option(help="Trials at most; 300 if left out.")] = None,
    guidance: Annotated[str | None, typer.Option(help="Hints for the language model.")] = None,
    seed_only: Annotated[bool, typer.Option("--seed-only", help="Deterministic search without an LLM.")] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Accept what is proposed for what the text leaves open.")
    ] = False,
    ledger: Annotated[str | None, typer.Option(help="File or postgresql:// URL of the ledger.")] = None,
    anchors: Annotated[str | None, typer.Option(help="Folder or file of anchors to use instead of the cache.")] = None,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Search for the best deployment of a model on a cluster."""
    from agent.cli.output import print_json
    from agent.llm.guards import Redactor
    from agent.tune import tune as run
    from predictor.errors import BadInput

    if jobs < 1:
        raise BadInput(f"jobs {jobs}: must be at least 1")
    given = {
        "model": model,
        "cluster": cluster,
        "engine": engine,
        "engine_version": engine_version,
        "objective": objective,
        "slos": tuple(slo) if slo else None,
        "isl": isl,
        "osl": osl,
        "concurrency": concurrency,
        "length_range": length_range,
        "prefix_hit": prefix_hit,
        "pins": tuple(pin) if pin else None,
        "free": tuple(free) if free else None,
        "validated": tuple(validated) if validated else None,
        "usd_per_gpu_h": usd_per_gpu_h,
        "budget": budget,
        "guidance": None if guidance is None else Redactor().text(guidance),
    }
    given = {**_traffic(trace), **{name: value for name, value in given.items() if value is not None}}
    session = None if seed_only else _session()
    request, reading = _request(text, request_file, given, yes, session)
    _show_reading(reading)
    with _progress(request.budget) as (step, say):
        planner = _planner(session, request, text, reading, say)
        outcome = run(request, ledger_url=ledger, anchors=anchors, jobs=jobs, progress=step, planner=planner)
    answer = outcome.as_json() | ({} if reading is None else {"reading": reading.as_json()})
    if json_output:
        print_json(answer)
    else:
        from agent.report import show_tuning

        first = next((trial for trial in outcome.result.trials if trial.origin == "baseline"), None)
        show_tuning(answer, None if first is None else {"levers": first.levers, "score": first.judged.score})
    if outcome.ended.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if outcome.result.best is None:
        raise typer.Exit(EXIT_NOTHING_LEGAL)


def _traffic(trace: str | None) -> dict[str, Any]:
    """What a trace says of the traffic, and that a search takes it as steady."""
    from agent.cli.output import note

    if trace is None:
        return {}
    from agent.trace_traffic import trace_traffic

    fields = trace_traffic(trace)
    said = ", ".join(f"{name} {value:g}" for name, value in fields.items() if isinstance(value, int | float))
    note(f"trace: taken as steady traffic of {said}; `inferasim simulate --trace` plays it on what is found")
    return fields


def _session() -> "Session":
    """The language model of the settings, or the reason there is none."""
    from agent.llm.session import open_session

    return open_session()


def _planner(
    session: "Session | None", request: "TuningRequest", text: str | None, reading: "Reading | None", say: Say
) -> "Planner | None":
    """The planner of a search with a language model; None for the seed search."""
    if session is None:
        return None
    from agent.llm.assistant import LlmPlanner

    return LlmPlanner(session, request.guidance, text or "", reading, say)


def _request(
    text: str | None, request_file: str | None, given: dict[str, Any], accept: bool, session: "Session | None"
) -> tuple["TuningRequest", "Reading | None"]:
    """The typed request, from words, a file or options alone; options win over both."""
    from agent.predict_request import validated as checked
    from agent.request import TuningRequest
    from predictor.errors import BadInput

    if text is not None and request_file is not None:
        raise BadInput("--request and a text are both given: use one of them")
    reading = None
    if text is not None:
        from agent.llm.text_request import read_request, settle

        reading = read_request(text, None if session is None else session.read_form)
        fields = settle(reading, given, accept)
    elif request_file is not None:
        from pathlib import Path

        from agent.request_file import read_request_file

        fields = {**read_request_file(Path(request_file)), **given}
    else:
        fields = given
    for name in ("model", "cluster", "engine"):
        if name not in fields:
            raise BadInput(
                f"--{name} is left out: say it, or describe the whole request in words or with --request FILE"
            )
    return checked(TuningRequest, **{"objective": DEFAULT_OBJECTIVE, **fields}), reading


def _show_reading(reading: "Reading | None") -> None:
    """What a text was understood to ask for, on stderr."""
    from agent.cli.output import note

    if reading is None:
        return
    for kind, items in (("understood", reading.understood), ("assumed", reading.assumed)):
        for one in items:
            value = ", ".join(map(str, one.value)) if isinstance(one.value, tuple) else one.value
            note(f"{kind}: {one.field} {value} ({one.why})")
    for line in reading.notes:
        note(f"note: {line}")


@contextmanager
def _progress(budget: int) -> Iterator[tuple[Callable[["Trial"], None] | None, Say]]:
    """A progress bar on a terminal's stderr, with the language model's thoughts above it; nothing in a pipe."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None, lambda text: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("trials", total=budget)

        def advance(trial: "Trial") -> None:
            if trial.judged.prediction is not None:
                progress.advance(task)
            if trial.origin in ("planner", "investigator"):
                verdict = "refused" if trial.judged.score is None else f"{trial.judged.score:.4g}"
                say(f"{trial.name}: {verdict}")

        def say(text: str) -> None:
            progress.console.print(Text(text, style="dim"))

        yield advance, say
