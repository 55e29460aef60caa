"""``inferasim anchors list | show | check | diff | import | export``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from predictor.anchors.schema import Anchor

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Folder = Annotated[str | None, typer.Option("--anchors", help="Folder or file of anchors instead of the cache.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    from agent.cli.anchor_import import import_

    group = typer.Typer(
        help="Measured kernel sets: list, show, check, compare, import and share them.", no_args_is_help=True
    )
    group.command("list", help="Anchors on hand.")(list_anchors)
    group.command("show", help="One anchor, whole.")(show)
    group.command("check", help="Check anchor files: schema, fit and harvest conditions.")(check)
    group.command("diff", help="What differs between two anchors: signature, steps, prefill.")(diff)
    group.command("import", help="Make an anchor of benchmark files, or take over a shared set of anchors.")(import_)
    group.command("export", help="Share anchors as a folder or an archive.")(export)
    app.add_typer(group, name="anchors")


def list_anchors(anchors: Folder = None, json_output: Json = False) -> None:
    """Anchors on hand."""
    from agent.anchor_files import load_anchors
    from agent.anchor_store import listing
    from agent.cli.output import print_json, table

    rows = listing(load_anchors(anchors))
    if json_output:
        print_json({"anchors": rows})
        return
    columns = ("name", "model", "gpu", "engine", "layout", "weights", "batches", "prompts", "kind", "coarse")
    table("Anchors", columns, [[_cell(row[column]) for column in columns] for row in rows])


def _cell(value: object) -> object:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return {True: "yes", False: ""}[value] if isinstance(value, bool) else value


def show(name: Annotated[str, typer.Argument(help="Anchor name.")], anchors: Folder = None) -> None:
    """One anchor, whole, as JSON."""
    from agent.cli.output import print_json
    from predictor.anchors.schema import all_fields

    anchor = _named(name, anchors)
    print_json({**all_fields(anchor), "sha256": anchor.content_hash})


def _named(name: str, anchors: str | None) -> "Anchor":
    """An anchor by name, or by the path of its file."""
    from pathlib import Path

    from agent.anchor_files import load_anchors, read_anchor
    from predictor.errors import unknown_name

    if name.endswith(".json") and Path(name).is_file():
        return read_anchor(Path(name))
    found = {one.name: one for one in load_anchors(anchors)}
    if name not in found:
        raise unknown_name("anchor", name, found)
    return found[name]


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


def diff(
    left: Annotated[str, typer.Argument(help="Anchor name or file.")],
    right: Annotated[str, typer.Argument(help="Anchor name or file.")],
    anchors: Folder = None,
    json_output: Json = False,
) -> None:
    """Signature fields that differ, and the change of every step both measured."""
    from agent.anchor_store import diff as compare
    from agent.cli.output import facts, print_json, table

    one, two = _named(left, anchors), _named(right, anchors)
    found = compare(one, two)
    rows: list[dict[str, Any]] = [
        {"what": step.what, "left_ms": step.left_ms, "right_ms": step.right_ms, "change_pct": step.change_pct}
        for step in found.steps
    ]
    if json_output:
        print_json({"same_content": found.same_content, "fields": list(found.fields), "steps": rows})
        return
    facts(f"{one.name} / {two.name}", [("signature", "; ".join(found.fields) or "the same")])
    columns = ("what", "left_ms", "right_ms", "change_pct")
    table("Steps", columns, [[row[column] for column in columns] for row in rows])


def export(
    target: Annotated[str, typer.Argument(help="Folder, or a name ending in .tar.gz or .zip.")],
    names: Annotated[list[str] | None, typer.Argument(help="Anchor names; all on hand if none is given.")] = None,
    signed_off_by: Annotated[str, typer.Option(help="Who vouches for the set; written into its manifest.")] = "",
    anchors: Folder = None,
    json_output: Json = False,
) -> None:
    """Write anchors and a manifest of their hashes."""
    from pathlib import Path

    from agent.anchor_files import load_anchors
    from agent.anchor_sharing import export as write
    from agent.cli.output import note, print_json

    chosen = [_named(name, anchors) for name in names] if names else list(load_anchors(anchors))
    write(chosen, Path(target), signed_off_by)
    if json_output:
        print_json({"target": target, "anchors": [one.name for one in chosen], "signed_off_by": signed_off_by})
    else:
        note(f"{len(chosen)} anchors in {target}")
