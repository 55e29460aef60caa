"""``inferasim harvest``."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from agent.anchor_store import Store
    from agent.harvest.request import Prepared
    from agent.harvest.run import Harvested


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("harvest", help="Time an engine's steps and prompts, check the conditions, write an anchor.")(harvest)


def harvest(
    model: Annotated[str, typer.Option(help="Model name, or the path of a Hugging Face config.json.")],
    gpu: Annotated[str, typer.Option(help="GPU type, such as MI355X or H200.")],
    engine: Annotated[str, typer.Option(help="vllm, sglang, atom or trtllm.")],
    engine_version: Annotated[str, typer.Option(help="Engine release; the newest profile if left out.")] = "",
    tp: Annotated[int, typer.Option(help="Tensor-parallel width.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel width.")] = 1,
    attn_dp: Annotated[int, typer.Option("--attn-dp", help="Attention data-parallel ranks.")] = 1,
    dcp: Annotated[int, typer.Option(help="Decode context-parallel width.")] = 1,
    weight_dtype: Annotated[str | None, typer.Option(help="bf16, fp8 or fp4; the maker's own if left out.")] = None,
    kv_dtype: Annotated[str, typer.Option(help="bf16, fp8 or fp4.")] = "bf16",
    graph_mode: Annotated[str, typer.Option(help="none, piecewise or full.")] = "full",
    spec_method: Annotated[str, typer.Option(help="none, mtp, eagle3, dspark or ngram.")] = "none",
    spec_depth: Annotated[int, typer.Option(help="Draft tokens a step.")] = 0,
    max_running: Annotated[int | None, typer.Option(help="Cap on running requests.")] = None,
    token_budget: Annotated[int | None, typer.Option(help="Tokens a step.")] = None,
    chunk_size: Annotated[int | None, typer.Option(help="Prompt tokens of one chunk.")] = None,
    kv_mem_fraction: Annotated[float | None, typer.Option(help="Share of memory for weights and KV.")] = None,
    prompt_tokens: Annotated[int, typer.Option(help="Prompt length of the decode sweep.")] = 1024,
    second_prompt_tokens: Annotated[int, typer.Option(help="Second length, for the cost of context; 0: none.")] = 0,
    batches: Annotated[str, typer.Option(help="Batch sizes, as 1,2,4; the captured powers of two if left out.")] = "",
    window_steps: Annotated[int, typer.Option(help="Decode steps timed in a wave.")] = 48,
    repeats: Annotated[int, typer.Option(help="Waves a batch.")] = 3,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Several prompts in one step.")] = True,
    url: Annotated[str | None, typer.Option(help="An engine that runs already; it is left running.")] = None,
    port: Annotated[int, typer.Option(help="Port of the engine that is started.")] = 8000,
    checkpoint: Annotated[
        str | None, typer.Option(help="Path or id of the weights; by the model card if left out.")
    ] = None,
    dummy_weights: Annotated[bool, typer.Option("--dummy-weights", help="The weights are not real.")] = False,
    text_prompts: Annotated[bool, typer.Option("--text-prompts", help="For servers that take no token ids.")] = False,
    even_busy: Annotated[bool, typer.Option("--even-busy", help="Measure though the devices are not idle.")] = False,
    ready_limit: Annotated[float, typer.Option(help="Seconds the engine may take to start.")] = 3600.0,
    log: Annotated[str | None, typer.Option(help="File for the engine's words.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the anchor.")] = None,
    anchors: Annotated[str | None, typer.Option("--anchors", help="Folder to save into instead of the cache.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace an anchor of the same kernel set and width.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show plan, GPU minutes and commands; start nothing.")
    ] = False,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time an engine's steps and prompts, check the conditions, write an anchor."""
    from pathlib import Path

    from agent.anchor_files import cache_folder
    from agent.anchor_store import Store
    from agent.cli.output import note, print_json
    from agent.harvest.request import HarvestRequest, prepare
    from agent.harvest.run import harvest as run
    from agent.predict_request import PredictRequest, validated
    from predictor.profiles.loader import engine_profile, model_card, platform

    wanted = validated(
        PredictRequest,
        model=model,
        gpu=gpu,
        engine=engine,
        engine_version=engine_version,
        isl=prompt_tokens,
        osl=window_steps,
        tp=tp,
        ep=ep,
        attn_dp=attn_dp,
        dcp=dcp,
        weight_dtype=weight_dtype,
        kv_dtype=kv_dtype,
        graph_mode=graph_mode,
        spec_method=spec_method,
        spec_depth=spec_depth,
        max_running=max_running,
        token_budget=token_budget,
        chunk_size=chunk_size,
        kv_mem_fraction=kv_mem_fraction,
    )
    card, hardware, profile = model_card(model), platform(gpu), engine_profile(engine)
    request = HarvestRequest(
        deployment=wanted.deployment(card, hardware.name, profile, engine_version or profile.versions[0].version),
        card=card,
        platform=hardware,
        profile=profile,
        prompt_tokens=prompt_tokens,
        second_prompt_tokens=second_prompt_tokens,
        batches=_sizes(batches),
        window_steps=window_steps,
        repeats=repeats,
        probe=probe,
        url=url,
        port=port,
        checkpoint=checkpoint,
        dummy_weights=dummy_weights,
        even_busy=even_busy,
        name=name,
        log=Path(log) if log else None,
        ready_limit_s=ready_limit,
        token_ids=not text_prompts,
    )
    prepared = prepare(request)
    if dry_run:
        if json_output:
            print_json(plan_json(prepared))
        else:
            _show_plan(prepared)
        return
    store = Store(Path(anchors) if anchors else cache_folder())
    _not_there_yet(store, prepared, replace)
    result = run(prepared, note if sys.stderr.isatty() else _quiet)
    saved = store.save(result.anchor, replace=replace)
    result.kept.forget()
    if json_output:
        print_json(result_json(result, str(saved)))
    else:
        _show(result, str(saved))


def _not_there_yet(store: "Store", prepared: "Prepared", replace: bool) -> None:
    """Each kernel set and width is measured once: said before an engine is started."""
    from agent.harvest.artefact import signature_of
    from predictor.errors import BadInput

    held = store.same_pair(signature_of(prepared.request.deployment, prepared.settings.capture_sizes))
    if held and not replace:
        raise BadInput(f"{held[0][0]}: holds this kernel set at this width already; measure it again with --replace")


def _quiet(text: str) -> None:
    """In a pipe nothing is said on the way."""


def _sizes(text: str) -> tuple[int, ...]:
    from predictor.errors import BadInput

    if not text:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise BadInput(f"batches {text!r}: expected whole numbers of at least 1, as 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


def plan_json(prepared: "Prepared") -> dict[str, Any]:
    """The keys of ``harvest --dry-run --json``."""
    plan, command = prepared.plan, prepared.command
    return {
        "prompt_tokens": plan.prompt_tokens,
        "batches": list(plan.batches),
        "second_prompt_tokens": plan.second_prompt_tokens,
        "second_batches": list(plan.second_batches),
        "prefill_tokens": list(plan.prefill_tokens),
        "packed_probe": [plan.probe_sequences, plan.prompt_tokens] if plan.probe_sequences else None,
        "repeats": plan.repeats,
        "minutes": round(prepared.minutes, 1),
        "gpu_minutes": round(prepared.gpu_minutes, 1),
        "command": list(command.argv) if command else None,
        "env": dict(command.env) if command else {},
        "url": command.url if command else prepared.request.url,
        "log": str(command.log) if command else None,
    }


def _show_plan(prepared: "Prepared") -> None:
    import shlex

    from agent.cli.output import facts

    plan = plan_json(prepared)
    command = [f"{name}={shlex.quote(value)}" for name, value in plan["env"].items()]
    command += [shlex.join(plan["command"])] if plan["command"] else []
    facts(
        "Harvest",
        [
            ("decode waves at", f"{plan['prompt_tokens']} tokens, batches {_list(plan['batches'])}"),
            (
                "second length",
                f"{plan['second_prompt_tokens']} tokens, batches {_list(plan['second_batches'])}"
                if plan["second_batches"]
                else "none",
            ),
            ("prompts alone", f"{_list(plan['prefill_tokens'])} tokens"),
            ("packed probe", "{} × {} tokens".format(*plan["packed_probe"]) if plan["packed_probe"] else "none"),
            ("repeats", plan["repeats"]),
            ("about", f"{plan['minutes']} minutes, {plan['gpu_minutes']} GPU minutes"),
            ("command", " ".join(command) or f"none: {plan['url']} runs already"),
            ("log", plan["log"]),
        ],
    )


def _list(values: list[int]) -> str:
    return " ".join(map(str, values))


def result_json(result: "Harvested", saved: str) -> dict[str, Any]:
    """The keys of ``harvest --json``."""
    from predictor.anchors.schema import all_fields, stated_fields

    anchor = result.anchor
    return {
        "name": anchor.name,
        "sha256": anchor.content_hash,
        "saved": saved,
        "decode": [
            {
                "prompt_tokens": sweep.prompt_tokens,
                "points": [stated_fields(point) for point in sweep.points],
            }
            for sweep in anchor.decode
        ],
        "prefill": all_fields(anchor.prefill),
        "packed_probe": all_fields(anchor.packed_probe) if anchor.packed_probe else None,
        "checks": [all_fields(check) for check in result.checks],
        "marked": [check.name for check in result.failed],
        "notes": list(anchor.provenance.notes),
    }


def _show(result: "Harvested", saved: str) -> None:
    from agent.cli.output import facts, note, table

    anchor = result.anchor
    for sweep in anchor.decode:
        rows = [
            [
                p.batch,
                p.step_ms,
                p.error_pct,
                p.readings.span_ms if p.readings else None,
                p.readings.server_ms if p.readings else None,
            ]
            for p in sweep.points
        ]
        table(
            f"{anchor.name}: decode step at {sweep.prompt_tokens}-token prompts",
            ["batch", "step ms", "repeats %", "span ms", "server ms"],
            rows,
        )
    table(
        "Prompts alone",
        ["tokens", "TTFT ms"],
        [[point.tokens, point.step_ms] for point in anchor.prefill.points],
    )
    facts("Checks", [(("passed " if c.passed else "FAILED ") + c.name, c.detail) for c in result.checks])
    for line in anchor.provenance.notes:
        note(line)
    note(f"saved: {saved}")
