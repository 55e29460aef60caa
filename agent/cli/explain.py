"""``inferasim explain``."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("explain", help="Why deployment A beats B, term by term.")(explain)


def explain(
    a: Annotated[str, typer.Argument(help="SEARCH:TRIAL, SEARCH:best, or a JSON file of `predict` fields.")],
    b: Annotated[str, typer.Argument(help="The deployment to compare with, in the same forms.")],
    metric: Annotated[
        str | None,
        typer.Option(help="ttft_ms, tpot_ms, e2e_ms or gpu_ms_per_output_token; the objective's own if left out."),
    ] = None,
    ledger: Annotated[str | None, typer.Option(help="File or postgresql:// URL of the ledger.")] = None,
    anchors: Annotated[str | None, typer.Option(help="Folder or file of anchors to use instead of the cache.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Why deployment A beats B, term by term."""
    from agent.cli.output import print_json
    from agent.explain import explain as compare
    from agent.explain import read_side
    from agent.explain.terms import METRICS
    from predictor.errors import unknown_name

    if metric is not None and metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    answer = compare(read_side(a, ledger, anchors), read_side(b, ledger, anchors), metric)
    if json_output:
        print_json(answer)
    else:
        show(answer)


def show(answer: Mapping[str, Any]) -> None:
    """The verdict, both sides, the terms and the changes as tables."""
    from agent.cli.output import facts, note, table

    a, b, metric = answer["a"], answer["b"], answer["metric"]
    verdict = "A beats B" if answer["a_beats_b"] else "A does not beat B"
    facts(
        f"{verdict} on {metric}: {answer['a_value']:.4g} against {answer['b_value']:.4g}",
        [
            ("A", f"{a['name']}: {a['deployment']}, {a['concurrency']} clients"),
            ("B", f"{b['name']}: {b['deployment']}, {b['concurrency']} clients"),
            *((f"because {number}", one["sentence"]) for number, one in enumerate(answer["causes"][:3], start=1)),
        ],
    )
    for name in dict.fromkeys((metric, "ttft_ms", "tpot_ms")):
        rows = answer["terms"][name]
        table(
            f"{name} by term",
            ["term", "A", "B", "A - B"],
            [
                *([row["label"], row["a"], row["b"], row["difference"]] for row in rows),
                ["all", a[name], b[name], a[name] - b[name]],
            ],
        )
    if answer["changes"]:
        table(
            f"From B to A, one change at a time: {metric}",
            ["change", "before", "after", "gives", "mechanism", "reference"],
            [
                [one["label"], one["before"], one["after"], one["difference"], one["mechanism"], one["reference"]]
                for one in answer["changes"]
            ],
        )
    table(
        "Mechanisms of the terms that decide",
        ["term", "mechanism", "reference"],
        [[one["label"], one["mechanism"], one["reference"]] for one in answer["causes"][:5]],
    )
    if answer["differences"]:
        table(
            "What differs", ["field", "A", "B"], [[one["field"], one["a"], one["b"]] for one in answer["differences"]]
        )
    for text in answer["notes"]:
        note(f"note: {text}")
