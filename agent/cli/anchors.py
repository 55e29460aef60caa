"""``inferasim anchors list | show | check``."""

from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Folder = Annotated[str | None, typer.Option("--anchors", help="Folder or file of anchors instead of the cache.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Measured kernel sets: list, show and check them.", no_args_is_help=True)
    group.command("list", help="Anchors on hand.")(list_anchors)
    group.command("show", help="One anchor, whole.")(show)
    group.command("check", help="Check anchor files: schema, fit and harvest conditions.")(check)
    app.add_typer(group, name="anchors")


def list_anchors(anchors: Folder = None, json_output: Json = False) -> None:
    """Anchors on hand."""
    from agent.anchor_files import load_anchors
    from agent.cli.output import print_json, table

    found = load_anchors(anchors)
    rows: list[dict[str, Any]] = [
        {
            "name": one.name,
            "model": one.signature.model,
            "gpu": one.signature.gpu,
            "engine": f"{one.signature.engine} {one.signature.engine_version}".strip(),
            "layout": one.signature.layout.label(),
            "weights": str(one.signature.weight_dtype),
            "batches": [point.batch for point in one.decode[0].points],
            "prompts": [sweep.prompt_tokens for sweep in one.decode],
            "coarse": one.provenance.coarse,
            "sha256": one.content_hash,
        }
        for one in found
    ]
    if json_output:
        print_json({"anchors": rows})
        return
    table(
        "Anchors",
        ["name", "model", "GPU", "engine", "layout", "weights", "batches", "prompts", "coarse"],
        [
            [
                row["name"],
                row["model"],
                row["gpu"],
                row["engine"],
                row["layout"],
                row["weights"],
                " ".join(map(str, row["batches"])),
                " ".join(map(str, row["prompts"])),
                "yes" if row["coarse"] else "",
            ]
            for row in rows
        ],
    )


def show(name: Annotated[str, typer.Argument(help="Anchor name.")], anchors: Folder = None) -> None:
    """One anchor, whole, as JSON."""
    from agent.anchor_files import load_anchors
    from agent.cli.output import print_json
    from predictor.errors import unknown_name

    found = {one.name: one for one in load_anchors(anchors)}
    if name not in found:
        raise unknown_name("anchor", name, found)
    print_json({**found[name].model_dump(mode="json"), "sha256": found[name].content_hash})


def check(
    files: Annotated[list[str], typer.Argument(help="Anchor files.")],
    json_output: Json = False,
) -> None:
    """Read each file and report every doubt; a malformed file is refused."""
    from pathlib import Path

    from agent.anchor_files import read_anchor
    from agent.cli.output import print_json, table
    from predictor.anchors.check import doubts

    results: list[dict[str, Any]] = []
    for file in files:
        anchor = read_anchor(Path(file))
        results.append(
            {
                "file": file,
                "name": anchor.name,
                "sha256": anchor.content_hash,
                "doubts": [{"code": flag.code, "message": flag.message} for flag in doubts(anchor)],
            }
        )
    if json_output:
        print_json({"anchors": results})
        return
    table(
        "Checked",
        ["file", "name", "doubts"],
        [
            [one["file"], one["name"], "; ".join(doubt["message"] for doubt in one["doubts"]) or "none"]
            for one in results
        ],
    )
