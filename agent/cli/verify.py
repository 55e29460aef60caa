"""``inferasim verify``: benchmark an endpoint, compare with the prediction, record, re-anchor."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent.cli.deployment_options import deployment_flags
from agent.cli.shared_flags import with_flags

if TYPE_CHECKING:
    from agent.verify import Verification
    from predictor.cards import ModelCard
    from predictor.predict import Catalogue
    from predictor.types import Deployment, Prediction, Workload

NEEDED = ("model", "gpu", "engine", "isl", "osl")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify", help="Benchmark an endpoint, compare with the prediction, record it, re-anchor from it.")(
        verify
    )


@with_flags(deployment_flags, shared_first=False, optional=True)  # a recorded trial may describe the deployment
def verify(
    fields: dict[str, Any],
    trial: Annotated[
        str | None, typer.Argument(help="SEARCH for its best trial, or SEARCH:TRIAL; else describe the deployment.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="The endpoint, such as http://host:8000.")] = None,
    result: Annotated[str | None, typer.Option(help="A benchmark file of any known tool, instead of a run.")] = None,
    client: Annotated[str, typer.Option(help="built-in, vllm (vllm bench serve), aiperf or guidellm.")] = "built-in",
    tokenizer: Annotated[
        str | None, typer.Option(help="Tokenizer of the client; the served model if left out.")
    ] = None,
    requests_per_client: Annotated[int, typer.Option(help="Requests a client sends.")] = 10,
    probes: Annotated[bool, typer.Option("--probes/--no-probes", help="Time a prompt alone and a step first.")] = True,
    text_prompts: Annotated[bool, typer.Option("--text-prompts", help="For servers that take no token ids.")] = False,
    reanchor: Annotated[bool, typer.Option("--reanchor", help="Save an anchor scaled to what was measured.")] = False,
    dummy_weights: Annotated[bool, typer.Option("--dummy-weights", help="The weights are not real.")] = False,
    name: Annotated[str | None, typer.Option(help="Name of the new anchor.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an anchor of the same kernel set and width.")
    ] = False,
    anchors: Annotated[
        str | None, typer.Option("--anchors", help="Folder or file of anchors instead of the cache.")
    ] = None,
    ledger: Annotated[str | None, typer.Option("--ledger", help="File or postgresql:// URL of the ledger.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Benchmark an endpoint, compare with the prediction, record it, re-anchor from it."""
    from agent.cli.output import note, print_json
    from agent.harvest.facts import check_model
    from agent.verify import facts_json, held_against
    from agent.verify import verify as measure
    from predictor.errors import BadInput
    from predictor.profiles.loader import model_card

    if (url is None) == (result is None):
        raise BadInput("verify needs --url of an endpoint or --result of a benchmark file, one of them")
    card, catalogue, deployment, workload = _what(trial, fields, requests_per_client, ledger, anchors)
    prediction = _prediction(deployment, workload, catalogue)
    if result is not None:
        run = _one_run(result, workload)
        if "model_name" in run.recorded:
            check_model(str(run.recorded["model_name"]), card, model_card)
        verification = held_against(prediction, run)
    else:
        verification = measure(
            prediction,
            deployment,
            workload,
            card,
            url or "",
            client=client,
            tokenizer=tokenizer,
            with_probes=probes,
            token_ids=not text_prompts,
            say=note if sys.stderr.isatty() else _quiet,
        )
    answer = {
        "anchor": prediction.anchor,
        "coverage": prediction.coverage,
        **facts_json(verification),
    }
    if trial is not None:
        answer["note"] = _record(trial, verification, prediction, ledger)
    if reanchor:
        answer["reanchored"] = _reanchor(
            verification, prediction, deployment, workload, catalogue, url, anchors, not dummy_weights, name, replace
        )
    if json_output:
        print_json(answer)
    else:
        _show(verification, answer)


def _quiet(text: str) -> None:
    """In a pipe nothing is said on the way."""


def _what(
    trial: str | None, fields: dict[str, Any], requests_per_client: int, ledger: str | None, anchors: str | None
) -> "tuple[ModelCard, Catalogue, Deployment, Workload]":
    """Card, catalogue, deployment and workload: of a recorded trial, or as the flags describe them."""
    from dataclasses import replace

    from agent.anchor_files import load_anchors
    from agent.handlers import look_up
    from agent.predict_request import PredictRequest, validated
    from predictor.errors import BadInput
    from predictor.predict import Catalogue

    if trial is None:
        missing = [name for name in NEEDED if fields[name] is None]
        if missing:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise BadInput(f"verify needs a recorded trial (SEARCH or SEARCH:TRIAL) or a deployment: give {flags}")
        request = validated(PredictRequest, **fields)
        catalogue, deployment = look_up(request, anchors)
        workload = replace(request.workload(), requests_per_client=requests_per_client)
        return catalogue.card, catalogue, deployment, workload
    from agent.cli.ledger import open_existing
    from agent.recorded import parse_trial, recorded_trial

    given = [name for name in NEEDED if fields[name] is not None]
    if given:
        raise BadInput(f"{given[0]} {fields[given[0]]!r}: trial {trial} says this already; leave it out")
    with open_existing(ledger) as book:
        found = recorded_trial(book, *parse_trial(trial))
    context = found.context
    on_hand = load_anchors(anchors) if anchors else found.anchors  # the search's own, as they were then
    usable = tuple(one for one in on_hand if one.signature.model == context.card.name)
    catalogue = Catalogue(context.card, context.platform, context.engine, usable)
    return context.card, catalogue, found.deployment, replace(found.workload, requests_per_client=requests_per_client)


def _prediction(deployment: "Deployment", workload: "Workload", catalogue: "Catalogue") -> "Prediction":
    from predictor.predict import predict

    return predict(deployment, workload, catalogue)


def _one_run(path: str, workload: "Workload") -> Any:
    """The run of a file that is at the prediction's load."""
    from pathlib import Path

    from agent.importing import read_file
    from predictor.anchors.import_formats import read_benchmark
    from predictor.errors import BadInput

    file = read_file(Path(path))
    runs = read_benchmark(file.text, file.name).runs
    fitting = [run for run in runs if run.concurrency in (None, workload.concurrency)]
    if len(fitting) != 1:
        loads = ", ".join(str(run.concurrency) for run in runs) or "none"
        raise BadInput(f"{path}: holds no single run at concurrency {workload.concurrency} (it has {loads})")
    return fitting[0]


def _record(trial: str, verification: "Verification", prediction: "Prediction", ledger: str | None) -> int:
    """Write prediction and measurement into the ledger, as a note of the search."""
    from datetime import UTC, datetime

    from agent.recorded import parse_trial
    from agent.tune import default_ledger
    from agent.verify import facts_json
    from ledger import open_ledger
    from ledger.record import NoteRecord

    search, index = parse_trial(trial)
    facts = facts_json(verification)
    costs = {"duration_s": facts.pop("duration_s")}
    with open_ledger(ledger or default_ledger(), create=False) as book:
        if index is None:
            stored = book.get_search(search)
            index = stored.end.best_index if stored.end else None
        written = NoteRecord(
            kind="verification",
            facts={"trial": index, "anchor": prediction.anchor, "method": prediction.method, **facts},
            costs=costs,
            after_trial=index,
            recorded_at=datetime.now(UTC),
        )
        return book.add_note(search, written)


def _reanchor(
    verification: "Verification",
    prediction: "Prediction",
    deployment: "Deployment",
    workload: "Workload",
    catalogue: "Catalogue",
    url: str | None,
    anchors: str | None,
    real_weights: bool,
    name: str | None,
    replace: bool,
) -> dict[str, Any]:
    """Save an anchor scaled to the run: of the one that served the prediction, else of the kernel models."""
    from pathlib import Path

    from agent.anchor_files import cache_folder
    from agent.anchor_store import Store
    from agent.harvest.facts import read_endpoint
    from agent.importing import LOOKUPS
    from agent.verify import anchored_base
    from agent.verify import reanchor as make

    base = anchored_base(prediction, deployment, workload, catalogue)
    version = read_endpoint(url).version if url else None
    made = make(
        [verification.run],
        deployment,
        workload,
        LOOKUPS,
        real_weights=real_weights,
        engine_version=version,
        base=base,
        name=name or (f"{prediction.anchor}-verified" if prediction.anchor else None),
    )
    folder = Path(anchors) if anchors and Path(anchors).is_dir() else cache_folder()
    saved = Store(folder).save(made.anchor, replace=replace)
    return {"name": made.anchor.name, "saved": str(saved), "notes": list(made.anchor.provenance.notes)}


def _show(verification: "Verification", answer: dict[str, Any]) -> None:
    from agent.cli.output import facts, note, table

    table(
        f"Verified with {verification.run.tool}, {verification.run.requests} requests",
        ["figure", "predicted", "measured", "error %"],
        [[one.name, one.predicted, one.measured, one.error_pct] for one in verification.compared],
    )
    for line in verification.explained or ("prediction and measurement agree within what repeats differ by",):
        note(line)
    if "note" in answer:
        note(f"recorded as note {answer['note']}")
    if "reanchored" in answer:
        facts("Re-anchored", [("name", answer["reanchored"]["name"]), ("saved", answer["reanchored"]["saved"])])
