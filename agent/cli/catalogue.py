"""``inferasim levers | objectives | models | platforms | engines``: what the tool knows."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("levers", help="The 36 levers and, for a model and cluster, their legal values.")(levers)
    app.command("objectives", help="The 24 objectives.")(objectives)
    app.command("models", help="Models in the catalogue.")(models)
    app.command("platforms", help="GPU platforms in the catalogue.")(platforms)
    app.command("engines", help="Engine profiles and their releases.")(engines)


def levers(
    model: Annotated[str | None, typer.Option(help="Model; with --cluster and --engine shows legal values.")] = None,
    cluster: Annotated[str, typer.Option(help="GPU:N or GPU:NxNODES.")] = "MI355X:8",
    engine: Annotated[str, typer.Option(help="vllm, sglang, atom or trtllm.")] = "sglang",
    engine_version: Annotated[str, typer.Option(help="Engine release.")] = "",
    pin: Annotated[list[str] | None, typer.Option(help="LEVER=VALUE; may repeat.")] = None,
    free: Annotated[list[str] | None, typer.Option(help="Lever to open, or load, or precision.")] = None,
    json_output: Json = False,
) -> None:
    """The 36 levers and, for a model and cluster, their legal values."""
    from agent.cli.output import print_json, table
    from levers.catalog import LEVERS
    from levers.lever import show

    if model is None:
        rows = [
            {"number": one.number, "name": one.name, "group": str(one.group), "kind": str(one.kind), "what": one.what}
            for one in LEVERS
        ]
        if json_output:
            print_json({"levers": rows})
        else:
            table("Levers", ["number", "name", "group", "kind", "what"], [list(row.values()) for row in rows])
        return

    from agent.request import TuningRequest
    from levers.legal_sets import legal_sets

    request = TuningRequest(
        model=model,
        cluster=cluster,
        engine=engine,
        engine_version=engine_version,
        objective="output_tok_s_per_gpu",
        pins=tuple(pin or ()),
        free=tuple(free or ()),
    )
    context = request.context()
    if json_output:
        print_json(
            {
                "model": context.card.name,
                "engine": context.engine.name,
                "version": context.engine_version,
                "levers": legal_sets(context),
            }
        )
        return
    rows_: list[list[object]] = []
    for lever in LEVERS:
        legal = ", ".join(show(value) for value in lever.values(context))
        left = "; ".join(reason.message for _, reason in lever.left_out(context))
        rows_.append([lever.name, legal, left])
    table(
        f"Levers of {context.card.name}, {context.engine.name} {context.engine_version}, {cluster}",
        ["lever", "legal values", "left out"],
        rows_,
    )


def objectives(json_output: Json = False) -> None:
    """The 24 objectives."""
    from agent.cli.output import print_json, table
    from levers.objectives import OBJECTIVES

    rows = [
        {
            "number": one.number,
            "name": one.name,
            "unit": one.unit,
            "direction": str(one.direction),
            "definition": one.definition,
            "computed_by": one.computed_by,
        }
        for one in OBJECTIVES
    ]
    if json_output:
        print_json({"objectives": rows})
        return
    table(
        "Objectives",
        ["number", "name", "unit", "direction", "definition"],
        [[row[key] for key in ("number", "name", "unit", "direction", "definition")] for row in rows],
    )


def models(json_output: Json = False) -> None:
    """Models in the catalogue."""
    from agent.cli.output import print_json, table
    from predictor.profiles.loader import model_card, model_names

    rows: list[dict[str, Any]] = []
    for name in model_names():
        card = model_card(name)
        rows.append(
            {
                "name": card.name,
                "layers": card.layers,
                "attention": card.attention.kind,
                "experts": card.moe.experts if card.moe else 0,
                "context": card.max_context_tokens,
                "weights": [str(one) for one in card.weight_dtypes],
                "total_params": card.published.total_params,
                "source": card.source,
            }
        )
    if json_output:
        print_json({"models": rows})
        return
    table(
        "Models",
        ["name", "parameters", "layers", "attention", "experts", "context", "weights"],
        [
            [
                row["name"],
                f"{row['total_params'] / 1e9:.1f} B" if row["total_params"] else "",
                row["layers"],
                row["attention"],
                row["experts"] or "",
                row["context"],
                " ".join(row["weights"]),
            ]
            for row in rows
        ],
    )


def platforms(json_output: Json = False) -> None:
    """GPU platforms in the catalogue."""
    from agent.cli.output import print_json, table
    from predictor.profiles.loader import platform, platform_names

    found = [platform(name) for name in platform_names()]
    if json_output:
        print_json({"platforms": [asdict(one) for one in found]})
        return
    table(
        "Platforms",
        ["name", "GPUs a node", "HBM GB", "HBM TB/s", "bf16 TFLOPS", "link GB/s"],
        [
            [
                one.name,
                one.gpus_per_node,
                one.hbm_bytes / 1e9,
                one.hbm_bytes_per_s / 1e12,
                one.peak_bf16_flops / 1e12,
                one.link_bytes_per_s / 1e9,
            ]
            for one in found
        ],
    )


def engines(json_output: Json = False) -> None:
    """Engine profiles and their releases."""
    from agent.cli.output import print_json, table
    from predictor.profiles.loader import engine_names, engine_profile

    found = [engine_profile(name) for name in engine_names()]
    if json_output:
        print_json({"engines": [asdict(one) for one in found]})
        return
    table(
        "Engines",
        ["name", "GPUs", "releases", "mixed steps", "hand-offs", "speculation"],
        [
            [
                one.name,
                " ".join(one.vendors),
                " ".join(two.version for two in one.versions),
                "yes" if one.mixed_steps else "no",
                " ".join(one.handoffs),
                " ".join(one.spec_methods),
            ]
            for one in found
        ],
    )
