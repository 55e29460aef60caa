"""What a request says, read by rule alone: names, numbers with their units and roles, bounds, pins, the objective.

The rules never guess. What they cannot place is left in ``loose`` and becomes a question; what is said twice in two
ways is in ``facts`` twice and becomes a question as well.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agent.llm.bounds import Bound, find_bounds, find_objectives
from agent.llm.mentions import MASK, Names, find_names, normalised
from agent.llm.quantities import Quantity, Unit, find_quantities
from levers.catalog import BY_NAME
from predictor.profiles.loader import platform

LENGTH_CUES = {
    "isl": r"input|prompt|prompts|isl|in|context|prefill",
    "osl": r"output|outputs|osl|out|generated|generate|completion|completions|response|responses|answer|answers|reply",
}
LENGTH_FILLER = r"(?:\s+(?:length|tokens?|size|of|is|about|around|are|has))*\s*[=:~]?\s*"
PAIR = re.compile(r"(?<![\w.:/])(\d[\d,]*)\s?([kK])?\s*/\s*(\d[\d,]*)\s?([kK])?(?![\w/])")
SMALLEST_PAIR = 64  # tokens; "24/7" is no shape
CLUSTER = re.compile(r":\s?(\d+)(?:\s?[x×]\s?(\d+))?")
VERSION = re.compile(
    r"\s*(?:version\s*)?v?(\d+\.\d+(?:\.\d+)?(?:[.-]?(?:post|rc|dev)\d+)?|main-[0-9a-f]{6,}|\d{4}-\d\d-\d\d)\b"
)
WIDTHS = {
    "tp": r"TP|tensor[ -]parallel(?:ism|\s*(?:size|width))?(?:\s+of)?",
    "ep": r"EP|expert[ -]parallel(?:ism|\s*(?:size|width))?(?:\s+of)?",
    "pp": r"PP|pipeline[ -]parallel(?:ism|\s*(?:size|width))?(?:\s+of)?",
    "dcp": r"DCP",
    "attn_dp": r"attention[ -]DP|DP[ -]attention|attn[ _-]?dp",
}
FORMAT = r"(bf16|fp8|fp4|mxfp4|nvfp4|int8|int4|awq|gptq)"
FORMATS = {"mxfp4": "fp4", "nvfp4": "fp4"}
WITHOUT = r"\b(?:no|without|disable|turn off)\s+(?:any\s+)?"
OFF = (
    (rf"{WITHOUT}spec(?:ulation|ulative|\b)", "spec_method", "none"),
    (rf"{WITHOUT}(?:pd[ -])?(?:disagg|split pools|separate prefill)|\bcolocated\b|\bno pd\b", "disagg", "off"),
    (rf"{WITHOUT}prefix[ -]cach", "prefix_cache", "off"),
    (r"\b(?:with|use|using)\s+MTP\b", "spec_method", "mtp"),
    (r"\b(?:with|use|using)\s+EAGLE-?3\b", "spec_method", "eagle3"),
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing the text says: the request's field, its value, and the words."""

    field: str
    value: Any
    raw: str


@dataclass(slots=True)
class Rules:
    """Everything the rules read in a text."""

    text: str
    names: Names
    quantities: tuple[Quantity, ...]
    facts: list[Fact] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    objectives: list[Fact] = field(default_factory=list)
    loose: list[Quantity] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # sentences that need an answer

    def values(self, name: str) -> list[Any]:
        """The different values the text gives a field, in its order."""
        return list(dict.fromkeys(fact.value for fact in self.facts if fact.field == name))

    def raw(self, name: str) -> str:
        """The words a field was read from."""
        return ", ".join(dict.fromkeys(fact.raw for fact in self.facts if fact.field == name))


def read_rules(text: str) -> Rules:
    """Read a request by rule."""
    plain = normalised(text)
    names = find_names(plain)
    rules = Rules(plain, names, ())
    masked = _versions(rules, _pins(rules, _cluster_literals(rules, names.masked)))
    masked = _pairs(rules, masked)
    quantities = find_quantities(masked)
    rules.quantities = quantities
    left = [one for one in quantities if not _placed(rules, masked, one)]
    left = _cluster(rules, masked, left)
    rules.bounds, rules.loose, doubts = find_bounds(masked, tuple(left))
    rules.doubts += doubts
    rules.objectives = [Fact("objective", name, raw) for name, raw in find_objectives(masked)]
    rules.loose = [one for one in rules.loose if one.unit is not Unit.BARE]
    return rules


def _blank(text: str, match: re.Match[str]) -> str:
    return text[: match.start()] + " " * (match.end() - match.start()) + text[match.end() :]


def _cluster_literals(rules: Rules, masked: str) -> str:
    """``H200:8x2`` right after a GPU's name."""
    for gpu in rules.names.gpus:
        match = CLUSTER.match(masked, gpu.end)
        if match:
            rules.facts.append(Fact("gpus_per_node", int(match[1]), gpu.raw + match[0]))
            rules.facts.append(Fact("nodes", int(match[2] or 1), gpu.raw + match[0]))
            masked = _blank(masked, match)
    return masked


def _versions(rules: Rules, masked: str) -> str:
    for engine in rules.names.engines:
        match = VERSION.match(masked, engine.end)
        if match:
            rules.facts.append(Fact("engine_version", match[1], f"{engine.raw} {match[1]}"))
            masked = _blank(masked, match)
    return masked


def _pins(rules: Rules, masked: str) -> str:
    """Levers the text fixes: ``lever=value``, widths, formats, and features that are named or ruled out."""
    for match in list(re.finditer(r"\b([a-z][a-z0-9_]+)\s?=\s?([A-Za-z0-9_.+-]*[A-Za-z0-9])", masked)):
        if match[1] in BY_NAME:
            rules.facts.append(Fact(f"pin:{match[1]}", match[2], match[0]))
            masked = _blank(masked, match)
    for lever, words in WIDTHS.items():
        for match in list(re.finditer(rf"\b(?:{words})\s?[=:-]?\s?(\d+)\b", masked, re.IGNORECASE)):
            rules.facts.append(Fact(f"pin:{lever}", match[1], match[0]))
            masked = _blank(masked, match)
    for match in list(re.finditer(r"\b(\d+)\s+replicas?\b", masked)):
        rules.facts.append(Fact("pin:replicas", match[1], match[0]))
        masked = _blank(masked, match)
    for pattern, lever, value in OFF:
        for match in re.finditer(pattern, masked, re.IGNORECASE):
            rules.facts.append(Fact(f"pin:{lever}", value, match[0]))
    return _formats(rules, masked)


def _formats(rules: Rules, masked: str) -> str:
    """Number formats: of the KV cache where it says so, else of the weights; those of a checkpoint's name as well."""
    kv = rf"\bkv(?:[ -]?cache)?(?:\s+(?:in|at|dtype|as))?\s*[=:]?\s*{FORMAT}\b|\b{FORMAT}\s+kv\b"
    for match in list(re.finditer(kv, masked, re.IGNORECASE)):
        _format(rules, "kv_dtype", match[1] or match[2], match[0])
        masked = _blank(masked, match)
    if re.search(r"\b(?:any|free|open|either)\s+(?:the\s+)?(?:precision|format|dtype)s?\b", masked, re.IGNORECASE):
        rules.facts.append(Fact("free", "precision", "precision is open"))
        return masked
    places = [(masked, ""), *((one.raw, one.raw) for one in rules.names.models if one.name)]
    for text, name in places:
        for match in re.finditer(rf"(?<![A-Za-z0-9]){FORMAT}(?![A-Za-z0-9])", text, re.IGNORECASE):
            _format(rules, "weight_dtype", match[1], name or match[0])
    return masked


def _format(rules: Rules, lever: str, word: str, raw: str) -> None:
    value = FORMATS.get(word.lower(), word.lower())
    if value in ("bf16", "fp8", "fp4"):
        rules.facts.append(Fact(f"pin:{lever}", value, raw))
    else:
        rules.doubts.append(f"{word} is not a format InferaSim prices (bf16, fp8, fp4): which one is meant?")


def _pairs(rules: Rules, masked: str) -> str:
    """``8k/1k``: input and output lengths."""
    for match in list(PAIR.finditer(masked)):
        values = [
            int(digits.replace(",", "")) * (1024 if scale else 1)
            for digits, scale in ((match[1], match[2]), (match[3], match[4]))
        ]
        if max(values) >= SMALLEST_PAIR:
            rules.facts += [Fact("isl", values[0], match[0]), Fact("osl", values[1], match[0])]
            masked = _blank(masked, match)
    return masked


def _placed(rules: Rules, masked: str, one: Quantity) -> bool:
    """Whether the quantity's own unit or the words beside it say what it is."""
    before = _before(masked, one.start)
    match one.unit:
        case Unit.TOKENS | Unit.BARE if role := _length_role(masked, one, before):
            rules.facts.append(Fact(role, _whole(one), one.raw if one.unit is Unit.TOKENS else f"{role} {one.raw}"))
        case Unit.CLIENTS:
            rules.facts.append(Fact("concurrency", _whole(one), one.raw))
        case Unit.BARE if re.search(r"\bconcurrency(?:\s+(?:of|is|at|to))?\s*[=:]?\s*$", before, re.IGNORECASE):
            rules.facts.append(Fact("concurrency", _whole(one), f"concurrency {one.raw}"))
        case Unit.BARE if re.search(r"\bbudget(?:\s+(?:of|is))?\s*[=:]?\s*$", before, re.IGNORECASE):
            rules.facts.append(Fact("budget", _whole(one), f"budget {one.raw}"))
        case Unit.TRIALS:
            rules.facts.append(Fact("budget", _whole(one), one.raw))
        case Unit.REQ_S:
            rules.facts.append(Fact("request_rate", one.value, one.raw))
        case Unit.PERCENT if _about_cache(masked, one):
            rules.facts.append(Fact("prefix_hit", one.value / 100.0, one.raw))
        case _:
            return False
    return True


def _whole(one: Quantity) -> int | float:
    """A count; a fraction stays one, so that the request's own check can refuse it."""
    return int(one.value) if one.value == int(one.value) else one.value


def _before(masked: str, start: int) -> str:
    return masked[max(0, start - 40) : start]


def _about_cache(masked: str, one: Quantity) -> bool:
    around = masked[max(0, one.start - 40) : one.end + 40]
    return bool(re.search(r"\b(?:prefix|cache|cached|hits?|shared|reuse|reused)\b", around, re.IGNORECASE))


def _length_role(masked: str, one: Quantity, before: str) -> str | None:
    """Which length a number of tokens is, by the nearest cue: its own words, then those after it, then those before."""
    after = masked[one.end : one.end + 24]
    for name, cues in LENGTH_CUES.items():
        if one.unit is Unit.TOKENS and re.search(rf"\b(?:{cues})\b", one.raw, re.IGNORECASE):
            return name
    for name, cues in LENGTH_CUES.items():
        if re.match(rf"[\s-]*(?:tokens?\s+)?(?:of\s+)?(?:{cues})\b", after, re.IGNORECASE):
            return name
    for name, cues in LENGTH_CUES.items():
        if re.search(rf"\b(?:{cues}){LENGTH_FILLER}$", before, re.IGNORECASE):
            return name
    return None


def _cluster(rules: Rules, masked: str, left: list[Quantity]) -> list[Quantity]:
    """GPUs and nodes in words: ``two nodes of eight H200``, ``16 H100``, ``a single B200``."""
    counts = [one for one in left if one.unit is Unit.GPUS]
    nodes = [one for one in left if one.unit is Unit.NODES]
    rest = [one for one in left if one.unit not in (Unit.GPUS, Unit.NODES)]
    if not counts and not nodes:
        return rest
    words = " and ".join(one.raw for one in (*nodes, *counts))
    if rules.values("nodes") or len({one.value for one in counts}) > 1 or len({one.value for one in nodes}) > 1:
        rules.doubts.append(f"how many GPUs are there? The text says {words}; write GPU:N or GPU:NxNODES")
        return rest
    known = {gpu.name for gpu in rules.names.gpus if gpu.name}
    usual = platform(next(iter(known))).gpus_per_node if len(known) == 1 else 8
    for name, count in _layout(rules, masked, counts, nodes, usual):
        rules.facts.append(Fact(name, count, words))
    return rest


def _layout(
    rules: Rules, masked: str, counts: list[Quantity], nodes: list[Quantity], usual: int
) -> Iterator[tuple[str, int]]:
    """GPUs a node and nodes; a doubt where the words allow two readings."""
    total = _whole(counts[0]) if counts else None
    machines = _whole(nodes[0]) if nodes else None
    if not isinstance(total, int | None) or not isinstance(machines, int | None) or 0 in (total, machines):
        rules.doubts.append("how many GPUs are there? Write GPU:N or GPU:NxNODES, in whole numbers from 1")
        return
    if total is None:
        yield "nodes", machines or 1
    elif machines is None:
        yield from _whole_nodes(rules, total, usual)
    elif machines == 1 or _per_node(masked, counts[0], nodes[0]):
        yield "gpus_per_node", total
        yield "nodes", machines
    elif total > usual and total % machines == 0:
        yield "gpus_per_node", total // machines
        yield "nodes", machines
    else:
        rules.doubts.append(
            f"{total} GPUs on {machines} nodes: {total} on each, or {total} altogether? Write GPU:NxNODES"
        )


def _whole_nodes(rules: Rules, total: int, usual: int) -> Iterator[tuple[str, int]]:
    if total <= usual:
        yield "gpus_per_node", total
        yield "nodes", 1
    elif total % usual == 0:
        yield "gpus_per_node", usual
        yield "nodes", total // usual
    else:
        rules.doubts.append(f"{total} GPUs are no whole number of nodes of {usual}: write GPU:NxNODES")


def _per_node(masked: str, count: Quantity, node: Quantity) -> bool:
    """Whether the GPUs are said to be of each node: ``2 nodes of 8``, ``8 per node``, ``2 nodes with 8 each``."""
    if node.end <= count.start:
        between = masked[node.end : count.start]
        tail = masked[count.end : count.end + 20]
        return bool(
            re.fullmatch(r"\s*(?:of|with|x|having|containing|,)\s*(?:\w+\s+)?", between, re.IGNORECASE)
            or re.match(rf"[\s{MASK}]*(?:gpus?\s+)?(?:each|per node|apiece)\b", tail, re.IGNORECASE)
        )
    between = masked[count.end : node.start]
    return bool(re.search(r"\b(?:per|on each of|in each of|a|each on|times|x)\s*$", between, re.IGNORECASE))
