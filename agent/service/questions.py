"""What the service's small processes answer: functions of plain values, run by :class:`agent.service.calls.Calls`.

Each checks what it is given as the command line does. A model is a name here, never a path: a request must not make the
service read its own disk.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agent.predict_request import PredictRequest, validated
from agent.request import TuningRequest
from agent.service.settings import ServiceSettings
from ledger import InputFile, open_ledger
from ledger.queue import Bounds, Job, NewJob, Queue
from ledger.store import Ledger
from predictor.errors import BadInput, unknown_name


@lru_cache(maxsize=4)
def book_of(url: str) -> Ledger:
    """One open ledger a process; it reconnects by itself."""
    return open_ledger(url)


def named_model(name: str) -> str:
    """A model's name; what would be read as a path is as unknown as any other name."""
    from predictor.profiles.loader import model_names

    if name.endswith((".json", ".toml")) or os.path.exists(name) or name.startswith(("~", ".", "/")):
        raise unknown_name("model", name, model_names())
    return name


# ------------------------------------------------------------------------------------------------------- predicting


def predict(settings: ServiceSettings, fields: Mapping[str, Any], mode: str, method: str) -> dict[str, Any]:
    """The keys of ``predict --json``."""
    from agent.handlers import predict_once

    request = validated(PredictRequest, **fields)
    named_model(request.model)
    return predict_once(request, mode, settings.anchors_folder, method)


def levers(model: str | None, cluster: str, engine: str, engine_version: str) -> dict[str, Any]:
    """The keys of ``levers --json``."""
    from levers.catalog import LEVERS
    from levers.legal_sets import legal_sets

    if model is None:
        names = ("number", "name", "group", "kind", "what")
        return {"levers": [{name: _text(getattr(one, name)) for name in names} for one in LEVERS]}
    request = TuningRequest(
        model=named_model(model),
        cluster=cluster,
        engine=engine,
        engine_version=engine_version,
        objective="output_tok_s_per_gpu",
    )
    context = request.context()
    return {
        "model": context.card.name,
        "engine": context.engine.name,
        "version": context.engine_version,
        "levers": legal_sets(context),
    }


def _text(value: object) -> object:
    return value if isinstance(value, int) else str(value)


# -------------------------------------------------------------------------------------------------------- searching


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks, and the key by which the same request sent again is known."""

    caller: str
    key: str | None = None


def submit_sweep(
    settings: ServiceSettings, kind: str, fields: Mapping[str, Any], more: Mapping[str, Any], asked: Asked
) -> tuple[Job, bool]:
    """Check a sweep or a mix as the commands do, and queue it."""
    from agent.anchor_files import load_anchors
    from agent.cluster import parse_cluster
    from agent.mix import parse_demands
    from agent.mix.plan import check_fleet
    from agent.pareto import SweepRequest
    from agent.tiers import given_tiers
    from predictor.profiles.loader import model_card

    tiers = given_tiers(more["tiers"])
    request = validated(SweepRequest, **fields)
    for name in request.models:
        model_card(named_model(name))
    request.lengths()
    gpu, cluster = parse_cluster(request.cluster)
    request.engine_list(gpu)
    load_anchors(settings.anchors_folder)
    if request.most_points is None or request.most_points > settings.max_sweep_points:
        asked_for = "left out" if request.most_points is None else request.most_points
        raise BadInput(
            f"most_points {asked_for}: this service sweeps {settings.max_sweep_points} points at most; say it"
        )
    if kind == "mix":
        if len(request.shapes) > 1:
            raise BadInput(f"shapes {', '.join(request.shapes)}: a mix is for one kind of traffic; sweep one shape")
        check_fleet(more["fleet"], cluster.gpus, parse_demands(tuple(more["demands"]), request.models, tiers))
    new = NewJob(kind, asked.caller, {"request": request.model_dump(mode="json"), **more}, asked.key)
    return Queue(book_of(settings.ledger_url), settings.lease_s).submit(new, bounds(settings))


def bounds(settings: ServiceSettings) -> Bounds:
    return Bounds(settings.queued_per_caller, settings.queued)


# ----------------------------------------------------------------------------------------------------------- trials


def launch(settings: ServiceSettings, search_id: int, index: int | None) -> dict[str, Any]:
    """Commands that start a recorded trial, the benchmark that checks it, and notes."""
    from agent.launching import launch_json
    from agent.recorded import recorded_trial

    found = recorded_trial(book_of(settings.ledger_url), search_id, index)
    context = found.context
    answer = launch_json(found.deployment, found.workload, context.card, context.platform, context.engine)
    return {
        "trial": found.trial.index,
        "launch": answer["commands"],
        "benchmark": answer["benchmark"],
        "launch_notes": answer["notes"],
    }


LAUNCH_FORMATS = ("shell", "compose", "kubernetes")


def launch_file(settings: ServiceSettings, search_id: int, index: int | None, file_format: str) -> str:
    """A file that starts a recorded trial, as ``inferasim launch`` prints it."""
    from agent.launch import Options, compose, kubernetes, launch_plan, script
    from agent.recorded import recorded_trial

    found = recorded_trial(book_of(settings.ledger_url), search_id, index)
    context = found.context
    options = Options(found.workload, own_network=file_format == "kubernetes")
    plan = launch_plan(found.deployment, context.card, context.platform, context.engine, options)
    if file_format == "shell":
        return script(plan, ())
    return compose(plan, ()) if file_format == "compose" else kubernetes(plan, "inferasim")


def explain(settings: ServiceSettings, a: str, b: str, metric: str | None) -> dict[str, Any]:
    """Why trial ``a`` beats trial ``b``, term by term; both as SEARCH:TRIAL."""
    from agent.explain import explain as compare
    from agent.explain.sides import trial_side
    from agent.explain.terms import METRICS
    from agent.recorded import parse_trial

    if metric is not None and metric not in METRICS:
        raise unknown_name("metric", metric, METRICS)
    sides = [trial_side(*parse_trial(text), settings.ledger_url) for text in (a, b)]
    return compare(sides[0], sides[1], metric)


def export(settings: ServiceSettings, search_id: int, file_format: str) -> bytes:
    """A search with every trial, as ``inferasim ledger export`` writes it."""
    from ledger.export import export as render

    return render(book_of(settings.ledger_url), [search_id], file_format, stable=False)


def report(settings: ServiceSettings, search_id: int) -> bytes:
    """The page ``inferasim report SEARCH --out`` writes."""
    from agent.charts.page import page
    from agent.charts.search_report import search_document

    return page(search_document(book_of(settings.ledger_url), search_id)).encode()


# ---------------------------------------------------------------------------------------------------------- anchors


def anchors(settings: ServiceSettings) -> list[dict[str, Any]]:
    """Anchors on hand, as ``anchors list --json`` has them."""
    from agent.anchor_files import load_anchors
    from agent.anchor_store import listing

    return listing(load_anchors(settings.anchors_folder))


def save_anchor(settings: ServiceSettings, text: str, replace: bool, keep: bool) -> dict[str, Any]:
    """Check an anchor as the commands do and keep it, whole or not at all."""
    from agent.anchor_files import cache_folder
    from agent.anchor_store import Store
    from predictor.anchors.check import doubts
    from predictor.anchors.schema import parse_anchor

    anchor = parse_anchor(text, "anchor")
    found = doubts(anchor)
    if keep:
        folder = Path(settings.anchors_folder) if settings.anchors_folder else cache_folder()
        Store(folder).save(anchor, replace=replace)
    return {
        "name": anchor.name,
        "sha256": anchor.content_hash,
        "kept": keep,
        "doubts": [{"code": flag.code, "message": flag.message} for flag in found],
    }


def submit_trace(
    settings: ServiceSettings, text: str, fields: Mapping[str, Any], options: Mapping[str, Any], asked: Asked
) -> tuple[Job, bool]:
    """Read a trace as ``simulate`` does, within the limits, keep it in the ledger, and queue its simulation."""
    from agent.handlers import look_up
    from predictor.des.routing import router_by_name

    check_trace(text, options, settings.max_trace_records)
    request = validated(PredictRequest, **fields, isl=1, osl=1)
    named_model(request.model)
    look_up(request, settings.anchors_folder)
    router_by_name(options["router"], np.random.default_rng(0))
    trace = InputFile("trace", "trace", text)
    body = {"fields": dict(fields), "options": dict(options)}
    new = NewJob("simulate", asked.caller, {**body, "trace_sha256": trace.sha256}, asked.key)
    return Queue(book_of(settings.ledger_url), settings.lease_s).submit(new, bounds(settings), inputs=(trace,))


def check_trace(text: str, options: Mapping[str, Any], most: int) -> int:
    """Read a whole trace; returns its usable records."""
    from predictor.workload.block_size import BlockSize, Tail
    from predictor.workload.trace import TraceReader

    tokens = options["block_tokens"]
    size = None if tokens is None else BlockSize(tokens, Tail.CEIL)
    skip = bool(options["skip_bad_records"])
    reader = TraceReader(text.splitlines(True), name="trace", block_size=size, skip_bad_records=skip)
    records = 0
    for records, _ in enumerate(reader, 1):
        if records > most:
            raise BadInput(f"trace: more than {most} records; this service reads no more")
    if not records:
        raise BadInput("trace: holds no usable record")
    return records


def plain(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer as plain JSON values."""
    value: dict[str, Any] = json.loads(json.dumps(answer, allow_nan=False))
    return value
