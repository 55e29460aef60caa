"""Numbers a request mentions, found by rule, each with its unit turned into the product's own: ms, tokens, tok/s."""

import re
from dataclasses import dataclass
from enum import StrEnum

from agent.llm.mentions import MASK


class Unit(StrEnum):
    """What a number counts."""

    TIME_MS = "time"
    TOK_S = "tok/s"
    TOK_S_USER = "tok/s/user"
    TOK_S_GPU = "tok/s/GPU"
    REQ_S = "requests/s"
    TOKENS = "tokens"
    CLIENTS = "clients"
    PERCENT = "percent"
    TRIALS = "trials"
    GPUS = "GPUs"
    NODES = "nodes"
    MONEY = "money"
    BARE = "number"


@dataclass(frozen=True, slots=True)
class Quantity:
    """One number: its value in the product's unit, and where it stands."""

    value: float
    unit: Unit
    raw: str
    start: int
    end: int  # after the unit
    per_token: bool = False  # a time "per token"


WORDS = {
    "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10,
    "twelve": 12, "sixteen": 16, "twenty": 20, "thirty-two": 32, "sixty-four": 64, "hundred": 100, "single": 1,
}  # fmt: skip
NUMBER = re.compile(
    r"(?<![\w.,/])(?:(?P<half>half a|a half)"
    rf"|(?P<article>an?)(?=\s+(?:second|millisecond|minute|node|server|host|machine|{MASK}))"
    rf"|(?P<word>{'|'.join(sorted(WORDS, key=len, reverse=True))})(?=[\s-]|$)"
    r"|(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)(?P<scale>\s?[kKM](?![A-Za-z]))?)",
    re.IGNORECASE,
)
PER_S = r"(?:/|\s*per\s+|\s+a\s+|\s+each\s+)(?:s|sec|second)\b"
TOK = r"(?:tok(?:en)?s?)"
USER = r"(?:\s*(?:/|per|a|for each|for every)\s*(?:user|client|stream|request|session)\b)"
GPU = rf"(?:\s*(?:/|per|a)\s*(?:gpu\b|{MASK}+))"
UNITS: tuple[tuple[re.Pattern[str], Unit, float], ...] = tuple(
    (re.compile(rf"[\s-]*(?:{pattern})", re.IGNORECASE), unit, factor)
    for pattern, unit, factor in (
        (rf"(?:output\s+|generated\s+|decode\s+)?(?:{TOK}{PER_S}|tps\b|t/s\b){USER}", Unit.TOK_S_USER, 1.0),
        (rf"{TOK}\s*(?:/|per)\s*user\s*(?:/|per)\s*(?:s|sec|second)\b", Unit.TOK_S_USER, 1.0),
        (rf"(?:output\s+|total\s+|generated\s+)?(?:{TOK}{PER_S}|tps\b|t/s\b){GPU}", Unit.TOK_S_GPU, 1.0),
        (rf"{TOK}\s*(?:/|per)\s*gpu\s*(?:/|per)\s*(?:s|sec|second)\b", Unit.TOK_S_GPU, 1.0),
        (rf"(?:output\s+|total\s+|generated\s+)?(?:{TOK}{PER_S}|tps\b|t/s\b)", Unit.TOK_S, 1.0),
        (rf"(?:(?:req(?:uest)?s?|queries|calls){PER_S}|rps\b|qps\b)", Unit.REQ_S, 1.0),
        (r"(?:ms|msecs?|millis|milliseconds?)\b", Unit.TIME_MS, 1.0),
        (r"(?:us|µs|μs|microseconds?)\b", Unit.TIME_MS, 1e-3),
        (r"(?:s|secs?|seconds?)\b", Unit.TIME_MS, 1e3),
        (r"(?:mins?|minutes?)\b", Unit.TIME_MS, 6e4),
        (r"(?:%|percent\b|per cent\b)", Unit.PERCENT, 1.0),
        (
            r"(?:concurrent|simultaneous|parallel|active)\s+\w+|(?:users?|clients?|sessions?|streams?|conversations?"
            r"|chats|requests?\s+(?:at once|in flight|at a time|in parallel|concurrently))\b",
            Unit.CLIENTS,
            1.0,
        ),
        (r"(?:trials?|evaluations?|evals|tries)\b", Unit.TRIALS, 1.0),
        (r"(?:nodes?|servers?|hosts?|machines?|boxes)\b", Unit.NODES, 1.0),
        (rf"(?:x\s*)?(?:of\s+)?(?:the\s+)?(?:{MASK}+(?:\s*(?:gpu|card)s?)?|(?:gpu|card)s?\b)", Unit.GPUS, 1.0),
        (rf"(?:input|output|prompt|generated|context|new|in|out)?[\s-]*{TOK}\b", Unit.TOKENS, 1.0),
        (r"(?:dollars?|usd|eur|euros?|€)(?![A-Za-z])", Unit.MONEY, 1.0),
    )
)  # fmt: skip
PER_TOKEN = re.compile(rf"\s*(?:/|per|a|for each)\s*(?:output\s+)?{TOK}(?![A-Za-z/])", re.IGNORECASE)


def find_quantities(masked: str) -> tuple[Quantity, ...]:
    """Every number of a text whose names are masked.

    >>> [(q.value, q.unit.value) for q in find_quantities("TTFT under 1.5 s, 20ms per token, 8k input tokens")]
    [(1500.0, 'time'), (20.0, 'time'), (8192.0, 'tokens')]
    """
    found: list[Quantity] = []
    for match in NUMBER.finditer(masked):
        value = _value(match)
        unit, factor, end = _unit(masked, match.end())
        if unit is Unit.BARE and match["digits"] is None:
            continue  # "one of the best": a word without a unit is no number
        if masked[: match.start()].rstrip().endswith(("$", "€")):
            unit = Unit.MONEY
        scaled = _scaled(value, match["scale"], unit)
        per_token = PER_TOKEN.match(masked, end) if unit is Unit.TIME_MS else None
        if per_token:
            end = per_token.end()
        raw = masked[match.start() : end].replace(MASK, "").strip()
        found.append(Quantity(scaled * factor, unit, raw, match.start(), end, bool(per_token)))
    return tuple(found)


def _value(match: re.Match[str]) -> float:
    if match["half"]:
        return 0.5
    if match["article"]:
        return 1.0
    if match["word"]:
        return float(WORDS[match["word"].lower()])
    return float(match["digits"].replace(",", ""))


def _scaled(value: float, scale: str | None, unit: Unit) -> float:
    """``8k`` of tokens is 8192, as benchmarks mean it; of anything else 8000."""
    if not scale:
        return value
    letter = scale.strip().lower()
    binary = unit in (Unit.TOKENS, Unit.BARE) and value == int(value)
    step = 1024.0 if binary else 1000.0
    return value * (step if letter == "k" else step * step)


def _unit(masked: str, position: int) -> tuple[Unit, float, int]:
    for pattern, unit, factor in UNITS:
        match = pattern.match(masked, position)
        if match:
            return unit, factor, match.end()
    return Unit.BARE, 1.0, position
