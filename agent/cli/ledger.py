"""``inferasim ledger list | show | export | diff``."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ledger.store import Ledger

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Url = Annotated[str | None, typer.Option("--ledger", help="File or postgresql:// URL of the ledger.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Recorded searches: list, show, compare and export them.", no_args_is_help=True)
    group.command("list", help="Searches, oldest first.")(list_searches)
    group.command("show", help="One search: its request, its best trial and its trials.")(show)
    group.command("export", help="Searches with every trial, as JSON lines, CSV or Parquet.")(export)
    group.command("resume", help="Finish a search that was interrupted or killed.")(resume)
    group.command("diff", help="What differs between two searches.")(diff)
    group.command("backup", help="Copy the whole ledger to a file while it is in use.")(back_up)
    group.command("restore", help="Make a new ledger of a backup.")(restore)
    app.add_typer(group, name="ledger")


def open_existing(url: str | None) -> "Ledger":
    """The ledger to read; one that is not there is an error."""
    from agent.tune import default_ledger
    from ledger import open_ledger

    return open_ledger(url or default_ledger(), create=False, write=False)


def list_searches(ledger: Url = None, json_output: Json = False) -> None:
    """Searches, oldest first."""
    from agent.cli.output import print_json, table
    from ledger.queries import list_searches as query

    with open_existing(ledger) as book:
        found = query(book)
    rows: list[dict[str, Any]] = [
        {
            "search_id": one.search_id,
            "created_at": one.created_at.isoformat(),
            "model": one.model,
            "cluster": one.cluster,
            "objective": one.objective,
            "status": one.status,
            "trials": one.trials,
            "legal": one.legal,
            "best_score": one.best.score if one.best else None,
        }
        for one in found
    ]
    if json_output:
        print_json({"searches": rows})
        return
    columns = ["search_id", "created_at", "model", "cluster", "objective", "status", "trials", "legal", "best_score"]
    table("Searches", columns, [[row[column] for column in columns] for row in rows])


def show(
    search_id: Annotated[int, typer.Argument(help="Id of the search.")],
    ledger: Url = None,
    story: Annotated[bool, typer.Option("--story", help="Tell it: hypotheses, tries, what was learned.")] = False,
    json_output: Json = False,
) -> None:
    """One search: its request, its best trial and its trials."""
    from agent.cli.output import facts, print_json, table
    from ledger.queries import best_trial, reason_counts

    with open_existing(ledger) as book:
        search, trials = book.get_search(search_id), book.trials(search_id)
        notes, best = book.notes(search_id), best_trial(book, search)
    if story:
        from agent.story import tell

        lines = tell(search, trials, notes)
        if json_output:
            print_json({"search_id": search_id, "story": lines})
        else:
            sys.stdout.write("\n".join(lines) + "\n")
        return
    reasons = reason_counts(trials)
    if json_output:
        print_json(
            {
                "search_id": search_id,
                "status": search.status,
                "input": search.record.stable(),
                "best": None if best is None else best.stable(),
                "reasons": reasons,
                "trials": [trial.stable() for trial in trials],
            }
        )
        return
    record = search.record
    facts(
        f"Search {search_id}",
        [
            ("model", record.model),
            ("cluster", record.cluster),
            ("objective", record.objective),
            ("status", search.status),
            ("trials", len(trials)),
            ("best", "none" if best is None else f"trial {best.index}: {best.score:.4g} ({best.hypothesis})"),
        ],
    )
    table(
        "Trials",
        ["trial", "origin", "name", "score", "legal", "why not"],
        [
            [
                trial.index,
                trial.origin,
                trial.hypothesis,
                trial.score,
                "yes" if trial.legal else "no",
                "; ".join(message for _, message in trial.reasons),
            ]
            for trial in trials
        ],
    )
    if reasons:
        table("Why trials were refused", ["reason", "trials"], list(reasons.items()))


def export(
    search_ids: Annotated[list[int] | None, typer.Argument(help="Ids; all searches if left out.")] = None,
    ledger: Url = None,
    file_format: Annotated[str, typer.Option("--format", help="jsonl, csv or parquet.")] = "jsonl",
    stable: Annotated[bool, typer.Option("--stable", help="Leave out ids, times and costs.")] = False,
    out: Annotated[str | None, typer.Option(help="File to write; stdout if left out.")] = None,
) -> None:
    """Searches with every trial, as JSON lines, CSV or Parquet."""
    from pathlib import Path

    from ledger.export import FORMATS, write_export
    from ledger.export import export as render
    from predictor.errors import BadInput

    if file_format not in FORMATS:
        raise BadInput(f"format {file_format!r}: must be one of {', '.join(FORMATS)}")
    with open_existing(ledger) as book:
        ids = search_ids or [search.search_id for search in book.searches()]
        content = render(book, ids, file_format, stable=stable)
    if out is None:
        sys.stdout.buffer.write(content)
    else:
        write_export(Path(out), content)


def resume(
    search_id: Annotated[int, typer.Argument(help="Id of an unfinished search.")],
    ledger: Url = None,
    anchors: Annotated[str | None, typer.Option(help="Folder or file of anchors the search was given.")] = None,
    jobs: Annotated[int, typer.Option(help="Worker processes.")] = 1,
    json_output: Json = False,
) -> None:
    """Finish a search that was interrupted or killed; it ends as if nothing had happened."""
    from agent.cli.output import print_json
    from agent.recorded import recorded_request
    from agent.report import show_tuning
    from agent.tune import tune
    from predictor.errors import BadInput

    with open_existing(ledger) as book:
        stored = book.get_search(search_id)
    if stored.end is not None:
        raise BadInput(f"search {search_id}: ended already ({stored.status}); see `inferasim ledger show {search_id}`")
    planner = stored.record.request.get("planner")
    if planner != "seed":
        raise BadInput(f"search {search_id}: was planned by a language model; give the same `inferasim tune` again")
    outcome = tune(recorded_request(stored.record.request), ledger_url=ledger, anchors=anchors, jobs=jobs)
    if outcome.search_id != search_id:
        raise BadInput(
            f"search {search_id}: its cards, anchors or release have changed since, so search {outcome.search_id} was "
            "run instead; `inferasim ledger diff` shows what changed"
        )
    if json_output:
        print_json(outcome.as_json())
    else:
        show_tuning(outcome.as_json(), None)


def diff(
    search_a: Annotated[int, typer.Argument(help="Id of the first search.")],
    search_b: Annotated[int, typer.Argument(help="Id of the second search.")],
    ledger: Url = None,
    json_output: Json = False,
) -> None:
    """What differs between two searches."""
    from agent.cli.output import facts, print_json, table
    from ledger.queries import diff as query

    with open_existing(ledger) as book:
        found = query(book, search_a, search_b)
    changes = {
        name: [{"field": one.field, "before": one.before, "after": one.after} for one in getattr(found, name)]
        for name in ("inputs", "best_levers", "best_metrics")
    }
    answer = {
        **changes,
        "same": found.same,
        "only_a": [one.index for one in found.only_a],
        "only_b": [one.index for one in found.only_b],
        "unchanged": found.unchanged,
        "changed": [
            {"index_a": one.index_a, "index_b": one.index_b, "fields": [change.field for change in one.changes]}
            for one in found.changed
        ],
    }
    if json_output:
        print_json(answer)
        return
    facts(
        "Trials",
        [
            ("same outcome", found.unchanged),
            ("other outcome", len(found.changed)),
            (f"only in {search_a}", len(found.only_a)),
            (f"only in {search_b}", len(found.only_b)),
        ],
    )
    for name, rows in changes.items():
        if rows:
            table(
                name.replace("_", " "),
                ["field", str(search_a), str(search_b)],
                [[row["field"], row["before"], row["after"]] for row in rows],
            )


def back_up(
    file: Annotated[str, typer.Argument(help="File to write; it must not exist.")],
    ledger: Url = None,
) -> None:
    """Copy the whole ledger to a file while it is in use."""
    from pathlib import Path

    from agent.cli.output import note
    from agent.tune import default_ledger
    from ledger.backup import backup

    backup(ledger or default_ledger(), Path(file))
    note(f"backup in {file}")


def restore(
    file: Annotated[str, typer.Argument(help="A backup.")],
    ledger: Annotated[str, typer.Option("--ledger", help="New file, or postgresql:// URL of an empty database.")],
) -> None:
    """Make a new ledger of a backup."""
    from pathlib import Path

    from agent.cli.output import note
    from ledger.backup import restore as make

    make(Path(file), ledger)
    note(f"restored to a new ledger from {file}")
