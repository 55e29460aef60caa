"""Bounds and objectives in words: ``p99 TTFT below 2 seconds``, ``at least 50 tok/s per user``, ``cheapest``."""

import re
from dataclasses import dataclass

from agent.llm.quantities import Quantity, Unit

TIME_METRICS = (
    (
        r"TTFT|time[ -]to[ -](?:the[ -])?first[ -]token|first[ -]token(?:\s+(?:latency|time))?|prefill latency",
        "ttft_ms",
    ),
    (r"TPOT|time[ -]per[ -](?:output[ -])?token|per[ -]token(?: latency)?|decode latency", "tpot_ms"),
    (r"ITL|inter[ -]?token(?:[ -]latency)?|token gap", "itl_ms"),
    (r"E2E(?:L)?|end[ -]to[ -]end(?:\s+latency)?|(?:full|whole|total|request) latency|complete response", "e2e_ms"),
)
RATE_METRICS = (
    (r"interactivity|(?:speed|rate) (?:per|for each) user", "interactivity_tok_s_user"),
    (r"total (?:throughput|tokens)", "total_tok_s"),
    (r"(?:output |decode |generation )?throughput", "output_tok_s"),
)
METRICS = tuple(
    (re.compile(rf"\b(?:{words})\b", re.IGNORECASE), name) for words, name in (*TIME_METRICS, *RATE_METRICS)
)
PER_GPU = {"output_tok_s": "output_tok_s_per_gpu", "total_tok_s": "total_tok_s_per_gpu"}
BY_UNIT = {Unit.TOK_S_USER: "interactivity_tok_s_user", Unit.TOK_S_GPU: "output_tok_s_per_gpu"}
LOWER = re.compile(
    r"(?:\b(?:over|above|at least|more than|min(?:imum)?|no less than|not less than|exceed(?:s|ing)?|greater than)"
    r"|>=?|≥)\s*(?:of\s*)?$",
    re.IGNORECASE,
)
UPPER = re.compile(
    r"(?:\b(?:under|below|less than|at most|within|max(?:imum)?|no more than|not more than|up to|not exceed"
    r"|faster than|lower than|stay(?:s|ing)? (?:under|below))|<=?|≤)\s*(?:of\s*|a\s*)?$",
    re.IGNORECASE,
)
NOT_UPPER = re.compile(
    r"\b(?:not|never|n't|no)\s+(?:to\s+)?(?:exceed|be over|be above|go over|above|over|more)\b", re.IGNORECASE
)
PERCENTILE = re.compile(r"\bp(?:ercentile)?\s?(\d{2}(?:\.\d+)?)\b|\b(\d{2}(?:\.\d+)?)th percentile\b", re.IGNORECASE)
SHARE_OF = re.compile(r"\b(\d{2}(?:\.\d+)?)\s?(?:%|percent) of\b", re.IGNORECASE)
HARD_STOP = re.compile(r"[;.](?=\s|$)|\n")
MEDIAN = re.compile(r"\bmedian\b", re.IGNORECASE)
CURRENT = re.compile(
    r"\b(?:currently|today|right now|at the moment|so far|we (?:see|get|have)|is now)\b", re.IGNORECASE
)
CLAUSE = re.compile(r"[;.,](?=\s|$)|\n|\b(?:and|but|while|plus|with)\b", re.IGNORECASE)
STATISTICS = {"50": "p50", "90": "p90", "99": "p99"}
MOST = r"\b(?:max\w*|highest|best|most|peak)"
LEAST = r"\b(?:min\w*|lowest|best|shortest|fastest|smallest|fewest|least)"
RATE = r"(?:throughput|tokens per second|tok\w*/s)"
OBJECTIVES = tuple(
    (re.compile(words, re.IGNORECASE), name)
    for words, name in (
        (r"\bcheap(?:est|er|ly)?\b|\bcost[ -](?:efficient|effective)\w*", "output_tok_s_per_gpu"),
        (rf"{LEAST} (?:the )?(?:possible )?costs?\b", "output_tok_s_per_gpu"),
        (rf"{MOST} (?:the )?(?:output )?{RATE} ?(?:per|/) ?(?:gpu|card)", "output_tok_s_per_gpu"),
        (rf"{LEAST} (?:number of )?gpus\b|\bas few gpus\b", "gpus"),
        (rf"{MOST} (?:the )?total {RATE}", "total_tok_s"),
        (rf"{MOST} (?:the )?(?:possible )?(?:output |decode )?{RATE}(?! ?(?:per|/) ?(?:gpu|user))", "output_tok_s"),
        (rf"{LEAST} (?:the )?(?:TTFT|time to first token|first token)\b", "ttft_ms"),
        (rf"{LEAST} (?:the )?(?:TPOT|time per output token|per[ -]token latency)\b", "tpot_ms"),
        (rf"{LEAST} (?:the )?(?:E2E|end[ -]to[ -]end|request|full|overall) ?(?:latency|time)?\b", "e2e_ms"),
        (rf"{MOST} (?:the )?interactivity\b|\bfastest (?:tokens )?(?:per|for each) user\b", "interactivity_tok_s_user"),
        (
            rf"{MOST} (?:number of )?(?:concurrent |simultaneous )(?:users|requests|sequences|sessions)\b",
            "max_concurrency",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound read by rule, as the command line writes it."""

    metric: str
    upper: bool
    value: float
    raw: str

    @property
    def slo(self) -> str:
        """``metric<=value``."""
        return f"{self.metric}{'<=' if self.upper else '>='}{self.value:g}"


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    start: int
    end: int


def find_bounds(masked: str, left: tuple[Quantity, ...]) -> tuple[list[Bound], list[Quantity], list[str]]:
    """Bounds, the quantities that no metric claims, and what has to be asked."""
    metrics = _metrics(masked)
    pairs = dict(_pairs(masked, left, metrics))
    bounds: list[Bound] = []
    loose: list[Quantity] = []
    doubts: list[str] = []
    for one in left:
        metric = "tpot_ms" if one.per_token else BY_UNIT.get(one.unit) or pairs.get(one)
        if metric is None or one.value <= 0:
            if not _is_percentile(masked, one):
                loose.append(one)
            continue
        if one.unit is Unit.TOK_S_GPU and re.search(r"\btotal\b", one.raw + _clause(masked, one), re.IGNORECASE):
            metric = "total_tok_s_per_gpu"
        if CURRENT.search(_clause(masked, one)):
            doubts.append(f"is {one.raw!r} what you have now, or a bound to keep? Write a bound as METRIC<=NUMBER")
            continue
        doubt = _add(bounds, masked, one, metric)
        if doubt:
            doubts.append(doubt)
    return bounds, loose, doubts


def _add(bounds: list[Bound], masked: str, one: Quantity, metric: str) -> str | None:
    upper = _upper(masked, one)
    natural = metric.endswith("_ms")
    if upper is not None and upper is not natural:
        side = "at least" if not upper else "at most"
        return f"{metric} {side} {one.raw}: is that really the bound? Write it as METRIC<=NUMBER or METRIC>=NUMBER"
    statistic = _statistic(masked, one) if natural else ""
    if statistic is None:
        return f"which percentile bounds {metric} at {one.raw}? Predictions give mean, p50, p90 and p99"
    bounds.append(Bound(metric + statistic, natural, one.value, one.raw))
    return None


def _metrics(masked: str) -> list[_Metric]:
    found: list[_Metric] = []
    for pattern, name in METRICS:
        for match in pattern.finditer(masked):
            if not any(one.start < match.end() and match.start() < one.end for one in found):
                per_gpu = re.match(r"\s*(?:per|/)\s?(?:gpu|card)", masked[match.end() :], re.IGNORECASE)
                found.append(_Metric(PER_GPU.get(name, name) if per_gpu else name, match.start(), match.end()))
    return found


def _pairs(masked: str, left: tuple[Quantity, ...], metrics: list[_Metric]) -> list[tuple[Quantity, str]]:
    """Quantities with the nearest metric of their kind in the same clause; each metric bounds one quantity.

    One time and one time metric in the whole text belong together wherever they stand; so do rates.
    """
    pairs: list[tuple[Quantity, str]] = []
    for unit, ending in ((Unit.TIME_MS, True), (Unit.TOK_S, False)):
        mine = [one for one in left if one.unit is unit and not one.per_token]
        fitting = [one for one in metrics if one.name.endswith("_ms") is ending]
        if len(mine) == 1 and len({one.name for one in fitting}) == 1:
            pairs.append((mine[0], fitting[0].name))
            continue
        near = sorted(
            (_distance(one, metric), one.start, metric.start, one, metric)
            for one in mine
            for metric in fitting
            if not CLAUSE.search(masked[min(one.end, metric.end) : max(one.start, metric.start)])
        )
        taken: set[int] = set()
        for _, place, metric_place, one, metric in near:
            if place in taken or -metric_place - 1 in taken:
                continue
            taken |= {place, -metric_place - 1}
            pairs.append((one, metric.name))
    return pairs


def _distance(one: Quantity, metric: _Metric) -> int:
    return max(metric.start - one.end, one.start - metric.end, 0)


def _clause(masked: str, one: Quantity) -> str:
    """The clause the quantity stands in."""
    start = max((match.end() for match in CLAUSE.finditer(masked, 0, one.start)), default=0)
    after = CLAUSE.search(masked, one.end)
    return masked[start : after.start() if after else len(masked)]


def _upper(masked: str, one: Quantity) -> bool | None:
    """The side the words before the number name; None where they name none."""
    before = masked[max(0, one.start - 32) : one.start].rstrip()
    if NOT_UPPER.search(before):
        return True
    if LOWER.search(before):
        return False
    return True if UPPER.search(before) else None


def _statistic(masked: str, one: Quantity) -> str | None:
    """Suffix of a percentile; empty for the mean, None for one that predictions do not give."""
    clause = _clause(masked, one)
    match = PERCENTILE.search(clause)
    stops = [stop.end() for stop in HARD_STOP.finditer(masked, 0, one.start)]
    shares = list(SHARE_OF.finditer(masked, max(stops, default=0), one.start))  # "99% of requests with TTFT within 1 s"
    number = (match[1] or match[2]) if match else shares[-1][1] if shares else None
    if number:
        name = STATISTICS.get(number)
        return None if name is None else f"_{name}"
    return "_p50" if MEDIAN.search(clause) else ""


def _is_percentile(masked: str, one: Quantity) -> bool:
    """``99% of requests``: no quantity of its own."""
    return one.unit is Unit.PERCENT and bool(re.match(r"\s*of\b", masked[one.end :], re.IGNORECASE))


def find_objectives(masked: str) -> list[tuple[str, str]]:
    """Objectives the text names, with the words; the first pattern that matches a place wins it."""
    found: list[tuple[str, str]] = []
    taken: list[tuple[int, int]] = []
    for pattern, name in OBJECTIVES:
        for match in pattern.finditer(masked):
            if not any(start < match.end() and match.start() < end for start, end in taken):
                taken.append(match.span())
                found.append((name, match[0]))
    return found
