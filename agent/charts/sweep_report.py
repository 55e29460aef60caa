"""The report of a sweep's file: charts by model and shape, tiers, verdicts, and what the picks are made of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agent.anchor_files import load_anchors
from agent.charts.accuracy import accuracy_figure
from agent.charts.deployments import Shown, deployment_figures, shown
from agent.charts.document import Block, Document, Section, Table
from agent.charts.figure import Figure
from agent.charts.frontiers import Point, frontier_figure, row_point
from agent.charts.measured import Measured, pairs
from agent.pareto.frontier import Chart, ChartKey, Frontier, Row, chart_json, chart_key, charts, kind_of
from agent.pareto.price import MODES, place_of, point_deployment
from agent.pareto.request import SweepRequest
from agent.pareto.store import read_header, read_rows
from agent.pareto.traced import play_sample
from agent.predict_request import validated
from agent.tiers import Tier
from predictor.anchors.schema import Anchor
from predictor.errors import BadInput

MOST_DOMINATED = 400  # points in the background of a chart, every so many of the file's


@dataclass(frozen=True, slots=True)
class SweepSource:
    """What a report of a sweep reads."""

    path: Path
    tiers: Sequence[Tier]
    anchors: str | None = None
    measured: Sequence[Measured] = ()

    def rows(self) -> Iterable[Row]:
        """Priced points of the file."""
        return (row for row in read_rows(self.path) if "refused" not in row)


def sweep_document(source: SweepSource) -> Document:
    """The whole report. Each chart's picks are priced again for their steps, memory and latencies."""
    header = read_header(source.path)
    request = validated(SweepRequest, **header["request"])
    found = charts(source.rows(), source.tiers)
    if not found:
        raise BadInput(f"sweep {str(source.path)!r}: holds no priced point; finish the sweep first")
    backgrounds = _backgrounds(source.rows(), {_key(chart): chart.points for chart in found})
    sections = [_overview(found)] if len(found) > 1 else []
    sections += [_chart_section(source, request, chart, backgrounds[_key(chart)]) for chart in found]
    scored = _accuracy(source)
    if scored is not None:
        sections.append(scored)
    points = sum(chart.points for chart in found)
    models = list(dict.fromkeys(chart.model for chart in found))
    return Document(
        f"Sweep of {', '.join(models)}" if len(models) <= 3 else f"Sweep of {len(models)} models",
        f"{request.cluster}; {_engines(found)}; {_traffic(request)}; "
        f"{', '.join(map(str, request.concurrencies))} clients",
        (("points priced", f"{points:,}"), ("charts", str(len(found))), *_headline(found)),
        tuple(sections),
        _notes(source, header, points),
    )


def _key(chart: Chart) -> ChartKey:
    return chart.model, chart.isl_tokens, chart.osl_tokens, chart.trace


def _traffic(request: SweepRequest) -> str:
    shapes = f"prompts and outputs of {', '.join(request.shapes)} tokens" if request.shapes else ""
    traces = ", ".join(Path(path).name for path in request.traces)
    played = f"the first {request.trace_requests} requests of {traces}" if traces else ""
    return " and ".join(filter(None, (shapes, played)))


def _engines(found: Sequence[Chart]) -> str:
    return ", ".join(dict.fromkeys(engine for chart in found for engine, _, _ in sorted(chart.series)))


def _headline(found: Sequence[Chart]) -> tuple[tuple[str, str], ...]:
    """Best throughput per GPU of each tier over one chart; over several, how often splitting wins."""
    tiers = [(chart, one) for chart in found for one in chart_json(chart)["tiers"]]
    if len(found) == 1:
        return tuple(
            (f"{one['tier']}, tok/s/GPU", "none" if one["best"] is None else f"{one['best'][Y]:,.0f}")
            for _, one in tiers
        )
    wins = sum(one["verdict"] in ("split", "only split") for _, one in tiers)
    met = sum(one["best"] is not None for _, one in tiers)
    return (("tiers met", f"{met} of {len(tiers)}"), ("splitting wins", f"{wins} of {met}"))


Y = "output_tok_s_per_gpu"


def _backgrounds(rows: Iterable[Row], counts: Mapping[ChartKey, int]) -> dict[ChartKey, list[Row]]:
    """Every so many of a chart's points, evenly over the file."""
    kept: dict[ChartKey, list[Row]] = {key: [] for key in counts}
    seen = dict.fromkeys(counts, 0)
    for row in rows:
        key = chart_key(row)
        every = -(-counts[key] // MOST_DOMINATED)
        if seen[key] % every == 0:
            kept[key].append(row)
        seen[key] += 1
    return kept


def _overview(found: Sequence[Chart]) -> Section:
    """One line a model, shape and tier."""
    rows = [(chart.model, chart.traffic, *_tier_cells(one)) for chart in found for one in chart_json(chart)["tiers"]]
    table = _table("Best of each tier", ("model", "traffic", *TIER_COLUMNS), rows)
    return Section("tiers", "All tiers", (table,))


def _table(title: str, columns: Sequence[str], rows: Sequence[tuple[object, ...]]) -> Table:
    """A table without the columns that hold nothing, such as a price that nobody named."""
    kept = [number for number in range(len(columns)) if any(row[number] is not None for row in rows)]
    return Table(
        title,
        tuple(columns[number] for number in kept),
        tuple(tuple(row[number] for number in kept) for row in rows),
    )


TIER_COLUMNS = (
    "tier",
    "tok/s/GPU",
    "tok/s/user",
    "TTFT ms",
    "clients",
    "USD/Mtok",
    "deployment",
    "split or colocated",
    "gain of split",
    "without drafters",
)


def _tier_cells(tier: Mapping[str, Any]) -> tuple[object, ...]:
    best, plain = tier["best"], tier["without_drafters"]
    if best is None:
        return (tier["tier"], None, None, None, None, None, "nothing meets it", None, None, None)
    point = row_point(best)
    bare = plain["verdict"] if plain["gain"] is None else f"{plain['verdict']} {plain['gain']:.2f}x"
    gain = None if tier["gain"] is None else f"{tier['gain']:.2f}x"
    figures = (point.tok_s_gpu, point.tok_s_user, point.ttft_ms, point.concurrency, best.get("usd_per_mtok"))
    return (tier["tier"], *figures, point.name, tier["verdict"], gain, bare)


def _chart_section(source: SweepSource, request: SweepRequest, chart: Chart, background: Sequence[Row]) -> Section:
    anchors = anchors_by_name(source.anchors)
    prefix = _prefix(chart)
    measured = [one.point for one in source.measured if (one.model, one.isl_tokens, one.osl_tokens, "") == _key(chart)]
    dominated = [row_point(row, _is_anchor(row, anchors)) for row in background]
    figures: list[Block] = [*frontier_figures(chart, anchors, dominated, measured)]
    figures.append(_table("Tiers", TIER_COLUMNS, [_tier_cells(one) for one in chart_json(chart)["tiers"]]))
    picks = {tier.name: row for tier in chart.tiers if (row := chart.tier_rows(tier.name)) is not None}
    named = _distinct(picks)
    if named:
        priced = {name: _shown(source, request, row) for name, row in named.items()}
        figures += deployment_figures(prefix, priced, next(iter(named)))
    return Section(prefix, _place(chart), tuple(figures))


def frontier_figures(
    chart: Chart,
    anchors: Mapping[str, Anchor],
    dominated: Sequence[Point] = (),
    measured: Sequence[Point] = (),
) -> tuple[Figure, Figure]:
    """A chart's frontier by engine, and colocated beside split."""
    return (
        frontier_figure(
            f"{_prefix(chart)}-engines",
            f"Frontier by engine: {_place(chart)}",
            _lines(by_engine(chart), anchors),
            tiers=chart.tiers,
            dominated=dominated,
            measured=measured,
        ),
        frontier_figure(
            f"{_prefix(chart)}-kinds",
            f"Colocated or split: {_place(chart)}",
            _lines(chart.kinds_in_order(), anchors),
            tiers=chart.tiers,
            measured=measured,
        ),
    )


def _place(chart: Chart) -> str:
    return f"{chart.model}, {chart.traffic}"


def _prefix(chart: Chart) -> str:
    return _slug(f"{chart.model}-{chart.trace or f'{chart.isl_tokens}-{chart.osl_tokens}'}")


def by_engine(chart: Chart) -> dict[str, Frontier]:
    """The chart's lines over formats and drafters, one an engine."""
    found: dict[str, Frontier] = {}
    for (engine, _, _), line in sorted(chart.series.items()):
        for row in line.rows:
            found.setdefault(engine, Frontier()).add(row)
    return found


def _lines(frontiers: Mapping[str, Frontier], anchors: Mapping[str, Anchor]) -> dict[str, tuple[Point, ...]]:
    return {
        name: tuple(row_point(row, _is_anchor(row, anchors)) for row in line.rows)
        for name, line in frontiers.items()
        if line.rows
    }


def _distinct(picks: Mapping[str, Row]) -> dict[str, Row]:
    """Picks by tier; a point that serves several tiers is shown once under all their names."""
    names: dict[int, list[str]] = {}
    for tier, row in picks.items():
        names.setdefault(row["i"], []).append(tier)
    return {" + ".join(tiers): picks[tiers[0]] for tiers in names.values()}


def _shown(source: SweepSource, request: SweepRequest, row: Row) -> Shown:
    deployment, workload, catalogue = point_deployment(request, source.anchors, row)
    mode = MODES[request.mode]
    found = shown(deployment, workload, catalogue, mode)
    if not row["trace"]:
        return found
    played = play_sample(request, place_of(request, row).trace, deployment, workload, catalogue, mode)
    return replace(found, result=played.result.simulation)


def anchors_by_name(anchors: str | None) -> dict[str, Anchor]:
    """Anchors on hand."""
    return {one.name: one for one in load_anchors(anchors)}


def _is_anchor(row: Row, anchors: Mapping[str, Anchor]) -> bool:
    """Whether the row's own layout, formats and drafter are those its anchor was measured on."""
    anchor = None if row["anchor"] is None else anchors.get(row["anchor"])
    if anchor is None or kind_of(row) == "split":
        return False
    signature = anchor.signature
    measured = (signature.tp, signature.ep, signature.attn_dp, str(signature.weight_dtype), str(signature.kv_dtype))
    levers = row["levers"]
    here = (levers.get("tp", 1), levers.get("ep", 1), levers.get("attn_dp", 1), row["weight"], row["kv"])
    drafts = (signature.spec_method, signature.spec_depth) == (row["drafter"], row["depth"])
    return measured == here and drafts and levers.get("pp", 1) == 1


def _accuracy(source: SweepSource) -> Section | None:
    """Predicted against measured, where the measured file says which deployments it holds."""
    if not source.measured:
        return None
    figures: list[Figure] = [
        accuracy_figure(f"accuracy-{_slug(metric)}", metric, groups)
        for metric, groups in pairs(source.measured, source.rows()).items()
    ]
    return Section("accuracy", "Predicted against measured", tuple(figures)) if figures else None


def _notes(source: SweepSource, header: Mapping[str, Any], points: int) -> tuple[str, ...]:
    notes = []
    whole = header["points"]
    if points < whole:
        notes.append(f"{whole - points:,} of {whole:,} points were refused or are not priced yet.")
    modes = {row["mode"] for row in source.rows()}
    if "simulate" in modes:
        notes.append("Points without an anchor come from kernel models alone: they rank deployments of one engine.")
    notes.append(
        f"Backgrounds show at most {MOST_DOMINATED} dominated points a chart, taken evenly; frontiers are whole."
    )
    return tuple(notes)


def _slug(text: str) -> str:
    return "".join(one if one.isalnum() else "-" for one in text.lower()).strip("-")
