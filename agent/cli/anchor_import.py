"""``inferasim anchors import``: benchmark files become an anchor, shared sets are taken over."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agent.anchor_store import Store
    from agent.importing import ImportReport
    from predictor.anchors.import_formats.run import Fact

Text = Annotated[str | None, typer.Option()]
Whole = Annotated[int | None, typer.Option()]


def import_(
    files: Annotated[
        list[str], typer.Argument(help="Benchmark results of one deployment, or a shared set of anchors.")
    ],
    model: Annotated[str | None, typer.Option(help="Model card: name, Hugging Face id or config.json.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU type, such as H200.")] = None,
    engine: Annotated[str | None, typer.Option(help="vllm, sglang, atom or trtllm.")] = None,
    engine_version: Annotated[str | None, typer.Option(help="Engine release or image tag.")] = None,
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel width.")] = None,
    ep: Annotated[int | None, typer.Option(help="Expert-parallel width; 1 for none.")] = None,
    attn_dp: Annotated[int | None, typer.Option("--attn-dp", help="Attention data-parallel ranks; 1 for none.")] = None,
    dcp: Annotated[int | None, typer.Option(help="Decode context-parallel width.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Replicas behind a router.")] = None,
    weight_dtype: Annotated[str | None, typer.Option(help="bf16, fp8 or fp4.")] = None,
    linear_dtype: Annotated[str | None, typer.Option(help="Activations; as the weights if left out.")] = None,
    expert_dtype: Annotated[str | None, typer.Option(help="Experts; as the weights if left out.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="bf16, fp8 or fp4.")] = None,
    attention_backend: Annotated[str | None, typer.Option(help="Where it was set.")] = None,
    moe_backend: Annotated[str | None, typer.Option(help="Where it was set.")] = None,
    a2a_backend: Annotated[str | None, typer.Option(help="Where it was set.")] = None,
    graph_mode: Annotated[str | None, typer.Option(help="none, piecewise or full.")] = None,
    spec_method: Annotated[str | None, typer.Option(help="none, mtp, eagle3, dspark or ngram.")] = None,
    spec_depth: Annotated[int | None, typer.Option(help="Draft tokens a step.")] = None,
    prefix_cache: Annotated[
        str | None, typer.Option(help="off, cold (on, but no prompt repeats another) or on.")
    ] = None,
    real_weights: Annotated[
        bool | None, typer.Option("--real-weights/--dummy-weights", help="What was loaded.")
    ] = None,
    isl: Annotated[int | None, typer.Option(help="Longest prompt drawn, tokens.")] = None,
    osl: Annotated[int | None, typer.Option(help="Longest answer drawn, tokens.")] = None,
    length_range: Annotated[float | None, typer.Option(help="Shortest over longest length drawn; 1 is fixed.")] = None,
    requests: Annotated[int | None, typer.Option(help="Requests sent in a run.")] = None,
    max_running: Annotated[int | None, typer.Option(help="Cap on running requests.")] = None,
    token_budget: Annotated[int | None, typer.Option(help="Tokens a step.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="Prompt tokens of one chunk.")] = None,
    kv_pool_tokens: Annotated[int | None, typer.Option(help="KV pool the engine printed at its start.")] = None,
    facts: Annotated[str | None, typer.Option(help="TOML file with the same facts.")] = None,
    accept_model_name: Annotated[
        str | None, typer.Option(help="What the files call the model, to confirm that it is --model.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the anchor.")] = None,
    anchors: Annotated[str | None, typer.Option("--anchors", help="Folder to save into instead of the cache.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an anchor of the same kernel set and width.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report, save nothing.")] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make an anchor of benchmark files, or take over a shared set of anchors."""
    from pathlib import Path

    from agent.anchor_files import cache_folder
    from agent.anchor_sharing import is_shared_set
    from agent.anchor_store import Store
    from predictor.errors import BadInput

    store = Store(Path(anchors) if anchors else cache_folder())
    shared = [file for file in files if Path(file).exists() and is_shared_set(Path(file))]
    if shared:
        if len(shared) < len(files):
            raise BadInput(f"{shared[0]} is a set of anchors, the other files are not: import them apart")
        _take_over(shared, store, replace, dry_run, json_output)
        return
    given: dict[str, Fact | None] = {
        "model": model,
        "gpu": gpu,
        "engine": engine,
        "engine_version": engine_version,
        "tp": tp,
        "ep": ep,
        "attn_dp": attn_dp,
        "dcp": dcp,
        "replicas": replicas,
        "weight_dtype": weight_dtype,
        "linear_dtype": linear_dtype,
        "expert_dtype": expert_dtype,
        "kv_dtype": kv_dtype,
        "attention_backend": attention_backend,
        "moe_backend": moe_backend,
        "a2a_backend": a2a_backend,
        "graph_mode": graph_mode,
        "spec_method": spec_method,
        "spec_depth": spec_depth,
        "prefix_cache": prefix_cache,
        "real_weights": real_weights,
        "isl": isl,
        "osl": osl,
        "length_range": length_range,
        "requests": requests,
        "max_running": max_running,
        "token_budget": token_budget,
        "chunk_size": chunk_size,
        "kv_pool_tokens": kv_pool_tokens,
    }
    flags = {key: value for key, value in given.items() if value is not None}
    report = _asking(files, flags, facts, accept_model_name, name, None if dry_run else store, replace)
    _print(report, json_output)


def _asking(
    files: list[str],
    flags: "Mapping[str, Fact]",
    side_file: str | None,
    accepted: str | None,
    name: str | None,
    store: "Store | None",
    replace: bool,
) -> "ImportReport":
    """Import; on a terminal a model name that differs from the card is asked about, elsewhere it is an error."""
    from agent.importing import import_files
    from predictor.anchors.import_solve.facts import ModelNameDiffers

    try:
        return import_files(
            files, flags, side_file=side_file, accepted_name=accepted, name=name, store=store, replace=replace
        )
    except ModelNameDiffers as question:
        if not sys.stdin.isatty():
            raise
        typer.confirm(f"{question.origin} calls its model {question.written!r}. Is that {question.wanted}?", abort=True)
        return import_files(
            files, flags, side_file=side_file, accepted_name=question.written, name=name, store=store, replace=replace
        )


def _take_over(files: list[str], store: "Store", replace: bool, dry_run: bool, json_output: bool) -> None:
    from pathlib import Path

    from agent.anchor_sharing import read_shared
    from agent.cli.output import note, print_json

    rows = []
    for file in files:
        shared = read_shared(Path(file))
        for anchor in shared.anchors:
            saved = None if dry_run else str(store.save(anchor, replace=replace))
            rows.append({"name": anchor.name, "sha256": anchor.content_hash, "saved": saved, "from": file})
            note(
                f"{anchor.name}: {saved or 'not saved'}"
                + (f" (vouched for by {shared.signed_off_by})" if shared.signed_off_by else "")
            )
    if json_output:
        print_json({"anchors": rows})


def report_json(report: "ImportReport") -> dict[str, Any]:
    """The keys of ``anchors import --json``."""
    from predictor.anchors.schema import all_fields, stated_fields

    anchor = report.imported.anchor
    return {
        "name": anchor.name,
        "sha256": anchor.content_hash,
        "saved": str(report.saved) if report.saved else None,
        "kind": anchor.decode[0].kind,
        "tpot_residual_pct": anchor.decode[0].residual_pct,
        "determined": [sweep.determined for sweep in anchor.decode],
        "decode": [
            {
                "prompt_tokens": sweep.prompt_tokens,
                "points": [stated_fields(point) for point in sweep.points],
            }
            for sweep in anchor.decode
        ],
        "prefill": all_fields(anchor.prefill),
        "host_ms": anchor.host.per_request_ms,
        "notes": list(anchor.provenance.notes),
        "doubts": [{"code": flag.code, "message": flag.message} for flag in report.doubts],
        "reproduced": {
            origin: [{"what": what, "recorded_ms": recorded, "reproduced_ms": value} for what, recorded, value in rows]
            for origin, rows in report.imported.reproduced.items()
        },
    }


def _print(report: "ImportReport", json_output: bool) -> None:
    from agent.cli.output import facts, note, print_json, table

    if json_output:
        print_json(report_json(report))
        return
    anchor = report.imported.anchor
    for sweep in anchor.decode:
        table(
            f"{anchor.name}: decode step at {sweep.prompt_tokens}-token prompts ({sweep.kind})",
            ["batch", "step ms", "± %", "served TPOT ms"],
            [[p.batch, p.step_ms, p.error_pct, p.served_tpot_ms] for p in sweep.points],
        )
    prefill = anchor.prefill
    facts(
        "Prefill",
        [
            ("fixed, ms", prefill.fixed_ms),
            ("per 1000 tokens, ms", prefill.per_token_ms * 1e3),
            ("per 1000² tokens, ms", prefill.per_token2_ms * 1e6),
            ("host time a request, ms", anchor.host.per_request_ms),
        ],
    )
    for line in anchor.provenance.notes:
        note(line)
    for flag in report.doubts:
        note(f"doubt: {flag.message}")
    note(f"saved: {report.saved}" if report.saved else "not saved (--dry-run)")
