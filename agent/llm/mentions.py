"""Names a request mentions, found by rule: models, GPUs and engines of the catalogues, and names nobody knows.

Case and separators do not count ("llama 3.1 8b" is Llama-3.1-8B); a version that goes on does ("GLM-5.2" is not GLM-5).
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache

from predictor.profiles.loader import (
    engine_names,
    engine_profile,
    model_card,
    model_names,
    platform,
    platform_names,
)

DASHES = re.compile(r"[\u2010-\u2015\u2212]")
TIMES_NAME = re.compile(r"(?<=\d)\s*[x×*]\s*(?=[A-Za-z])")  # 8xH200
NEGATION = re.compile(
    r"\b(?:not?|never|without|except|excluding|avoid|unlike|replac(?:e|ing)|from|than|instead of)"
    r"\s+(?:(?:on|use|using|with|for|our|the|an?|any|old|\d+|x|of)\s+)*$",
    re.IGNORECASE,
)
BENIGN_SUFFIX = {"instruct", "chat", "it", "hf", "based", "class", "style", "fp8", "bf16", "fp4", "mxfp4", "nvfp4"}
UNKNOWN_GPU = re.compile(
    r"(?<![\w.])(?:A10G?|A30|A40|A100|A800|H20|H800|GH200|L4|L40S?|V100|T4|P100|P40|MI\d{3}[A-Z]?|[HB]\d{3}[A-Z]?|GB\d{3}"
    r"|R[TX]{2}\s?\d{4}|RTX\s?A?\d{4}|TPU\s?v\d\w*|Gaudi\s?\d?|Trainium\s?\d?|Inferentia\s?\d?)(?![\w])",
    re.IGNORECASE,
)
UNKNOWN_MODEL = re.compile(
    r"(?<![\w.])(?:[A-Za-z][\w.]*(?:-[\w.]+)*-\d+(?:\.\d+)?[bB]|(?:mistral|mixtral|gemma|phi|falcon|grok|nemotron|command-?r"
    r"|claude|gpt-\d|jamba|olmo|granite|ernie|hunyuan|step|longcat|seed-?oss)(?:[\s-]?v?\d[\w.]*)*)(?:-[A-Za-z]\w*)*"
    r"(?![\w])",
    re.IGNORECASE,
)
UNKNOWN_ENGINE = re.compile(
    r"(?<![\w.])(?:TGI|text-generation-inference|llama\.cpp|LMDeploy|MLC(?:-LLM)?|DeepSpeed|Ollama|Triton server"
    r"|MAX|Dynamo|exllama\w*)(?![\w])"
)
MASK = "\x01"  # stands for a character of a name in the masked text, so that its digits are no numbers


@dataclass(frozen=True, slots=True)
class Mention:
    """A name in the text: what it means in the catalogue, or None with the nearest names."""

    raw: str
    name: str | None
    near: tuple[str, ...]
    start: int
    end: int
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Names:
    """Every name of a text and the text with the names masked."""

    models: tuple[Mention, ...]
    gpus: tuple[Mention, ...]
    engines: tuple[Mention, ...]
    masked: str


def normalised(text: str) -> str:
    """One form for the many ways to type the same: full-width forms, dashes, ``8xH200``.

    >>> normalised("8×H200 – ｖLLM")
    '8 x H200 - vLLM'
    """
    plain = DASHES.sub("-", unicodedata.normalize("NFKC", text))
    return TIMES_NAME.sub(" x ", plain)


def find_names(text: str) -> Names:
    """Every model, GPU and engine a normalised text mentions, known or not."""
    models, masked = _find(text, _model_patterns())
    models, masked = _with_families(text, masked, models)
    gpus, masked = _find(text, _gpu_patterns(), masked)
    engines, masked = _find(text, _engine_patterns(), masked)
    gpus, masked = _unknown(text, masked, gpus, UNKNOWN_GPU, platform_names())
    engines, masked = _unknown(text, masked, engines, UNKNOWN_ENGINE, engine_names())
    models, masked = _unknown(text, masked, models, UNKNOWN_MODEL, model_names())
    return Names(models, gpus, engines, masked)


def _find(
    text: str, patterns: tuple[tuple[re.Pattern[str], str], ...], masked: str | None = None
) -> tuple[tuple[Mention, ...], str]:
    """Mentions of known names, longest first, masked once found."""
    left = text if masked is None else masked
    found: list[Mention] = []
    for pattern, name in patterns:
        for match in list(pattern.finditer(left)):
            found.append(_mention(text, match.start(), match.end(), name, ()))
            left = _mask(left, match.start(), found[-1].end)
    return tuple(sorted(found, key=lambda one: one.start)), left


def _mention(text: str, start: int, end: int, name: str | None, near: tuple[str, ...]) -> Mention:
    suffix = re.match(r"-([A-Za-z]\w*)", text[end:])
    if name is not None and suffix and suffix[1].lower() not in BENIGN_SUFFIX:
        near, name, end = (name,), None, end + suffix.end()  # another checkpoint, such as …-AWQ
    elif suffix:
        end += suffix.end()
    return Mention(text[start:end], name, near, start, end, bool(NEGATION.search(text[:start])))


def _with_families(text: str, masked: str, models: tuple[Mention, ...]) -> tuple[tuple[Mention, ...], str]:
    """A family name without a known member: a mention with the members it may mean."""
    found = list(models)
    for family in _families():
        pattern = re.compile(rf"(?<![\w.]){_loose(family)}(?:[\s_-]?[A-Za-z]?\d[\w.]*)*(?![\w])", re.IGNORECASE)
        for match in list(pattern.finditer(masked)):
            raw = match[0].rstrip(".")
            found.append(_mention(text, match.start(), match.start() + len(raw), None, _near(raw, model_names())))
            masked = _mask(masked, match.start(), match.end())
    return tuple(sorted(found, key=lambda one: one.start)), masked


def _unknown(
    text: str, masked: str, known: tuple[Mention, ...], pattern: re.Pattern[str], names: tuple[str, ...]
) -> tuple[tuple[Mention, ...], str]:
    """Mentions that look like a name and are in no catalogue."""
    found = list(known)
    for match in list(pattern.finditer(masked)):
        found.append(_mention(text, match.start(), match.end(), None, _near(match[0], names)))
        masked = _mask(masked, match.start(), match.end())
    return tuple(sorted(found, key=lambda one: one.start)), masked


def _near(raw: str, names: Iterable[str]) -> tuple[str, ...]:
    """Names that begin like the mention, else those spelled like it."""
    wanted = _squeezed(raw)
    known = tuple(names)
    begins = tuple(name for name in known if _squeezed(name).startswith(wanted))
    if begins:
        return begins
    by_form = {_squeezed(name): name for name in known}
    return tuple(by_form[form] for form in get_close_matches(wanted, by_form, n=3, cutoff=0.5))


def _squeezed(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


def _mask(text: str, start: int, end: int) -> str:
    return text[:start] + MASK * (end - start) + text[end:]


def _loose(name: str) -> str:
    """A pattern for a name with separators anywhere between words and numbers, or nowhere."""
    parts = re.findall(r"[A-Za-z]+|\d+(?:\.\d+)*", name)
    return r"[\s_/-]?".join(re.escape(part) for part in parts)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9.]){_loose(name)}(?![A-Za-z0-9]|\.\d)", re.IGNORECASE)


def _patterns(names: dict[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Patterns of names and aliases, the longest name first."""
    return tuple((_pattern(known), name) for known, name in sorted(names.items(), key=lambda pair: -len(pair[0])))


@lru_cache(maxsize=1)
def _model_patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    names: dict[str, str] = {}
    for name in model_names():
        card = model_card(name)
        ids = (one.split("/")[-1] for one in card.hf_ids)
        names |= dict.fromkeys((*card.hf_ids, *ids, *card.aliases, name), name)
    return _patterns(names)


@lru_cache(maxsize=1)
def _gpu_patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    names: dict[str, str] = {}
    for name in platform_names():
        forms = (name, *platform(name).aliases)
        names |= dict.fromkeys((*forms, *(f"{form}s" for form in forms)), name)
    return _patterns(names)


@lru_cache(maxsize=1)
def _engine_patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    names: dict[str, str] = {}
    for name in engine_names():
        names |= dict.fromkeys((name, *engine_profile(name).aliases), name)
    return _patterns(names)


@lru_cache(maxsize=1)
def _families() -> tuple[str, ...]:
    """First words of the catalogue's models: Llama, Qwen, DeepSeek …"""
    words = {re.match(r"[A-Za-z]+(?:-oss)?", name) for name in model_names()}
    return tuple(sorted({word[0] for word in words if word}, key=len, reverse=True))
