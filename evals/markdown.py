"""One corpus' JSON report as Markdown: targets with everything that stands beside them, breakdowns, worst rows."""

import argparse
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Report = Mapping[str, Any]
Evaluate = Callable[[argparse.Namespace], Mapping[str, Any]]

METRICS = {
    "tpot": "TPOT",
    "ttft": "TTFT",
    "total_tok_s_per_gpu": "throughput/GPU",
    "interactivity": "interactivity",
    "throughput_proxy": "throughput proxy",
}


@dataclass(frozen=True, slots=True)
class Target:
    """One figure to reach: where it stands in the report, and what stands beside it.

    Paths are dotted keys of the report; a figure that starts with a digit or a bracket is text.
    """

    what: str
    at: str
    target: str = ""
    paper: str = ""
    rival: str = ""
    noise: str = ""
    rule: str = ""


def targets_of(corpus: str) -> tuple[Target, ...]:
    """Targets of ``amd`` or ``nvidia``."""
    with (Path(__file__).parent / "targets.toml").open("rb") as file:
        return tuple(Target(**entry) for entry in tomllib.load(file)[corpus])


def look_up(report: Report, path: str) -> Any:
    """Value at a dotted path, ``name[label]`` naming a row of a breakdown; None where it is absent.

    >>> look_up({"a": {"b": 1}, "by_x": [{"x": "p", "n": 2}]}, "by_x[p].n")
    2
    """
    value: Any = report
    for part in path.split("."):
        name, _, label = part.partition("[")
        value = value.get(name) if isinstance(value, Mapping) else None
        if label:
            rows: Sequence[Mapping[str, Any]] = value or []
            value = next((row for row in rows if label.rstrip("]") in row.values()), None)
    return value


def beside(report: Report, text: str) -> str:
    """A figure of the report where the text is a path, else the text."""
    if not text or text[0].isdigit():
        return text or "–"
    found = look_up(report, text)
    return "–" if found is None else str(found)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A Markdown table; nothing without rows."""
    lines = ["| " + " | ".join("" if cell is None else str(cell) for cell in row) + " |" for row in rows]
    return [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}", *lines, ""] if lines else []


def target_rows(report: Report, wanted: Sequence[Target]) -> list[dict[str, str]]:
    """Each target's figure with the paper's, the rival's, the noise floor and the rule without a model."""
    return [
        {
            "what": one.what,
            "here": beside(report, one.at),
            "target": one.target or "–",
            "paper": one.paper or "–",
            "rival": beside(report, one.rival),
            "noise_floor": beside(report, one.noise),
            "gpu_count_rule": beside(report, one.rule),
        }
        for one in wanted
    ]


def targets(report: Report, wanted: Sequence[Target]) -> list[str]:
    """Targets as a table."""
    columns = ("what", "here", "target", "paper, its rows", "rival, same rows", "noise floor", "GPU-count rule")
    return table(columns, [tuple(row.values()) for row in target_rows(report, wanted)])


def summaries(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A breakdown: n, median errors, share of TPOT within 20%."""
    metrics = [m for m in METRICS if any(f"{m}_median_ape_pct" in row for row in rows)]
    label = next(
        (key for row in rows for key in row if key not in {"n", "within_20_pct"} and not key.endswith("_pct")), ""
    )
    columns = (label, "n", *(f"{METRICS[m]}, %" for m in metrics), "TPOT within 20%, %")
    body = [
        (row[label], row["n"], *(row.get(f"{m}_median_ape_pct") for m in metrics), row["within_20_pct"].get("tpot"))
        for row in rows
    ]
    return [f"### {name}", "", *table(columns, body)] if rows else []


def worst(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows with the largest errors: everything told of them, the step by term last."""
    plain = [key for key in rows[0] if key not in {"step_ms", "flags"}] if rows else []
    body = [
        (
            *(row[key] for key in plain),
            ", ".join(row["flags"]),
            ", ".join(f"{term} {ms}" for term, ms in row.get("step_ms", {}).items() if ms),
        )
        for row in rows
    ]
    return table((*plain, "flags", "decode step, ms"), body)


def counts(title: str, found: Mapping[str, int]) -> list[str]:
    """Names and numbers, largest first."""
    largest_first = sorted(found.items(), key=lambda item: -item[1])
    return [f"## {title}", "", *table(("reason", "rows"), largest_first)]


GROUPS = ("colocated", "colocated_core", "colocated_other_build", "ttft_agrees_over_shapes", "wider_tp", "two_widths",
          "other_load", "disaggregated", "disaggregated_near", "disaggregated_no_r1")  # fmt: skip


def sections(report: Report) -> list[str]:
    """Groups and breakdowns."""
    named = [{"group": name, **report[name]} for name in GROUPS if look_up(report, f"{name}.within_20_pct") is not None]
    lines = ["## Groups", "", *summaries("All groups", named), "## Breakdowns", ""]
    for name, rows in report.items():
        if name.startswith("by_") and isinstance(rows, list):
            lines += summaries(name.replace("_", " "), rows)
    return lines


def markdown(title: str, report: Report, wanted: Sequence[Target]) -> str:
    """The whole report."""
    anchors = ", ".join(f"{value} {name}" for name, value in report["anchors"].items())
    lines = [
        f"# {title}",
        "",
        f"Rule {report['rule']}, protocol {report['protocol']}; {report['rows']} rows; anchors: {anchors}. Errors are "
        "median absolute percentage errors over clean targets; nothing is fitted to a target row.",
        "",
        "## Targets",
        "",
        *targets(report, wanted),
        "## Noise floor",
        "",
        "Repeats of one configuration differ by this much (median, %); no predictor can be nearer.",
        "",
        *table(("repeats", "%"), report["noise_floor_pct"].items()),
        *counts("Rows without an anchor", report["uncovered"]),
        *(counts("Rows the product refuses to price", report["refused"]) if report.get("refused") else []),
        *counts("Cleaning rules and what they caught", report["cleaning"]),
        *sections(report),
        f"## Worst {len(report['worst'])} rows",
        "",
        *worst(report["worst"]),
    ]
    if "extra" in report:
        extra = report["extra"]
        lines += [
            f"## Extra rows ({extra['rows']}, covered {extra['covered_pct']}%)",
            "",
            *targets(extra, wanted),
            *sections(extra),
            *worst(extra["worst"]),
        ]
    return "\n".join(lines).rstrip() + "\n"


def with_targets(evaluate: Evaluate, corpus: str) -> Evaluate:
    """The eval of ``amd`` or ``nvidia`` with its targets in the report, written where ``--markdown FILE`` says."""

    def reported(args: argparse.Namespace) -> Mapping[str, Any]:
        report, wanted = evaluate(args), targets_of(corpus)
        if args.markdown:
            title = f"Accuracy on public {corpus.upper()} served runs"
            Path(args.markdown).write_text(markdown(title, report, wanted), encoding="utf-8")
        return {**report, "targets": target_rows(report, wanted)}

    return reported


def add_option(arguments: argparse.ArgumentParser) -> None:
    """The option that :func:`with_targets` reads."""
    arguments.add_argument("--markdown", metavar="FILE", help="write the report as Markdown too")
