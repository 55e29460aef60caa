"""Speculative decoding without an anchor of its own: tokens a step commits, what drafting costs, which depth pays.

A verify step at depth ``k`` commits (paper §3.6, Eq. 2)::

    L(k) = 1 + Σ_{i=1..k} Π_{j=1..i} a_j        a_j: chance that draft token j is accepted given those before it

``L`` is measured where InferenceX published it; else it is the sibling head's (MTP for EAGLE-3 and the reverse), or the
drafter's median over models. Beyond the last measured depth it continues by a geometric chain a_1 = c, a_j = q, fitted
to the measured points (never differenced: each depth is a separate noisy run). Text of another entropy class scales
a_1, which scales L − 1. N-gram drafting has no published acceptance and is refused without a measured curve.

A drafter is priced as layers of the target: draft time is the plain step times a modelled ratio.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import pow
from pathlib import Path
from typing import Any, Literal

from predictor.cards import ModelCard
from predictor.errors import BadInput, DataUnavailable
from predictor.types import Speculation

Method = Literal["mtp", "eagle3", "dspark", "ngram"]
EntropyClass = Literal["low", "mixed", "high"]

_DATA = Path(__file__).parent / "profiles" / "acceptance.toml"
_SIBLING = {"mtp": "eagle3", "eagle3": "mtp"}
_RATIO_STEPS = 64  # golden-section steps for q: 0.618^64 is far below the data's rounding


@dataclass(frozen=True, slots=True)
class Chain:
    """Geometric acceptance chain: the first draft is accepted with chance ``first``, each later one with ``later``."""

    first: float
    later: float

    def length(self, depth: float) -> float:
        """L of the chain, non-decreasing in depth and within [1, 1 + depth].

        >>> Chain(0.75, 0.5).length(2)
        2.125
        """
        return 1.0 + self.first * _geometric(self.later, depth)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance curve in use: measured lengths at depth 1, 2, …, the chain that continues them, and where from."""

    lengths: tuple[float, ...]
    chain: Chain
    origin: Literal["measured", "sibling", "default", "given"]
    source: str
    scale: float = 1.0  # of L − 1, by entropy class

    def length(self, depth: int) -> float:
        """Mean tokens a verify step commits at this draft depth."""
        if depth <= 0:
            return 1.0
        known = len(self.lengths)
        tokens = self.lengths[min(depth, known) - 1]
        if depth > known:
            tokens += self.chain.length(depth) - self.chain.length(known)
        return 1.0 + (tokens - 1.0) * self.scale

    def extrapolated(self, depth: int) -> bool:
        """Whether no measurement reaches this depth."""
        return depth > len(self.lengths)


@lru_cache(maxsize=256)
def acceptance(
    model: str, method: Method, *, thinking: bool | None = None, entropy: EntropyClass | None = None
) -> Acceptance:
    """Acceptance of a drafting method on a model; ``thinking`` picks the mode measured, True where both exist.

    Raises DataUnavailable for n-gram drafting, whose acceptance nobody published: use :func:`given_acceptance`.
    """
    if method not in ("mtp", "eagle3", "dspark", "ngram"):
        raise BadInput(f"speculation method is {method!r}; legal is mtp, eagle3, dspark, ngram")
    scale = entropy_scale(entropy) if entropy else 1.0
    for tried, origin in ((method, "measured"), (_SIBLING.get(method, ""), "sibling")):
        curve = _pick(model, tried, thinking)
        if curve is not None:
            mode = "thinking" if curve.thinking else "no thinking"
            source = f"{curve.model} {curve.method}, {mode}, {curve.source}"
            kind: Literal["measured", "sibling"] = "measured" if origin == "measured" else "sibling"
            return Acceptance(curve.lengths, fit_chain(curve.lengths), kind, source, scale)
    lengths = default_lengths(method)
    source = f"median of the published {method} curves"
    return Acceptance(lengths, fit_chain(lengths), "default", source, scale)


def given_acceptance(lengths: Sequence[float], source: str) -> Acceptance:
    """Acceptance measured by the operator: mean tokens a step at depth 1, 2, …"""
    bad = [k for k, length in enumerate(lengths, 1) if not 1.0 <= length <= k + 1]
    if not lengths or bad:
        raise BadInput(f"acceptance lengths {list(lengths)}: one or more, at depth k between 1 and k + 1")
    return Acceptance(tuple(lengths), fit_chain(lengths), "given", source)


def fit_chain(lengths: Sequence[float]) -> Chain:
    """Least-squares chain through L at depth 1, 2, …: ``L(k) = 1 + c (1 − q^k)/(1 − q)``, 0 ≤ c ≤ 1, 0 ≤ q ≤ 1.

    ``c`` is linear given ``q``; ``q`` is found by golden section, the error being unimodal on these curves.

    >>> chain = fit_chain([1.8, 2.2, 2.4])
    >>> round(chain.first, 3), round(chain.later, 3)
    (0.8, 0.5)
    """
    gains = [length - 1.0 for length in lengths]
    if len(gains) == 1:
        return Chain(min(1.0, gains[0]), min(1.0, gains[0]))

    def best_first(later: float) -> float:
        x = [_geometric(later, depth) for depth in range(1, len(gains) + 1)]
        first = sum(a * b for a, b in zip(x, gains, strict=True)) / sum(a * a for a in x)
        return min(1.0, max(0.0, first))

    def error(later: float) -> float:
        first = best_first(later)
        return sum((first * _geometric(later, k) - gain) ** 2 for k, gain in enumerate(gains, 1))

    low, high, golden = 0.0, 1.0, (5**0.5 - 1) / 2
    for _ in range(_RATIO_STEPS):
        left, right = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, right) if error(left) <= error(right) else (left, high)
    later = (low + high) / 2
    return Chain(best_first(later), later)


def _geometric(ratio: float, terms: float) -> float:
    """Σ_{i=0..terms−1} ratio^i, continued to fractional terms."""
    if ratio > 1.0 - 1e-9:
        return float(terms)
    return (1.0 - pow(ratio, terms)) / (1.0 - ratio)


def entropy_scale(entropy: EntropyClass) -> float:
    """First-position acceptance of a class over coding's, the class being the mean of its domains.

    With one chain per drafter, L − 1 is proportional to the first acceptance, so the ratio of accepted drafts is it.

    >>> round(entropy_scale("low"), 2), round(entropy_scale("mixed"), 2), round(entropy_scale("high"), 2)
    (0.96, 0.73, 0.5)
    """
    content = _content()
    lengths = content["domains"]["lengths"]
    members = content["entropy_classes"].get(entropy)
    if members is None:
        raise BadInput(f"entropy class is {entropy!r}; legal is {', '.join(content['entropy_classes'])}")
    return float(sum(lengths[domain] - 1.0 for domain in members) / len(members) / (lengths["coding"] - 1.0))


# ---- published curves ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PublishedCurve:
    """One measured curve: mean tokens a step at depth 1, 2, …"""

    model: str
    method: str
    variant: str
    thinking: bool
    lengths: tuple[float, ...]
    source: str


@lru_cache(maxsize=1)
def published_curves() -> tuple[PublishedCurve, ...]:
    """Every curve that is shipped."""
    content = _content()
    return tuple(
        PublishedCurve(
            curve["model"],
            curve["method"],
            curve.get("variant", ""),
            curve["thinking"],
            tuple(float(length) for length in curve["lengths"]),
            f"{content['source']} {curve['file']}",
        )
        for curve in content["curve"]
    )


@lru_cache(maxsize=8)
def default_lengths(method: str) -> tuple[float, ...]:
    """Per-depth median over the published curves of a method."""
    curves = [curve.lengths for curve in published_curves() if curve.method == method]
    if not curves:
        raise DataUnavailable(f"no published acceptance lengths for {method}: give a measured curve")
    return tuple(_median(column) for column in zip(*curves, strict=True))


def _pick(model: str, method: str, thinking: bool | None) -> PublishedCurve | None:
    """The model's curve of a method: plain variant first, the asked mode first, else thinking."""
    wanted = True if thinking is None else thinking
    found = [curve for curve in published_curves() if (curve.model, curve.method) == (model, method)]
    return min(found, key=lambda curve: (curve.thinking != wanted, curve.variant), default=None)


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@lru_cache(maxsize=1)
def _content() -> dict[str, Any]:
    return tomllib.loads(_DATA.read_text(encoding="utf-8"))


# ---- what drafting costs -------------------------------------------------------------------------------------------

# EAGLE-3 heads prune their vocabulary to this many tokens (draft_vocab_size of the published heads).
_EAGLE3_VOCAB = 32000
_DSPARK_LAYERS = 3  # MoE layers of the block backbone (paper A.2)


@dataclass(frozen=True, slots=True)
class Drafter:
    """A drafter in layers of its target.

    ``serial``: every drafted token passes the layers; else they run once a block and only the head is serial.
    """

    method: Method
    layers: int
    kind: Literal["target", "moe", "dense", "none"]
    head_share: float  # of the target's LM head, by vocabulary
    serial: bool


def drafter(card: ModelCard, method: Method) -> Drafter:
    """Default drafter of a method on a model (paper A.2).

    MTP: the model's own layer kind, one module a drafted token. EAGLE-3: one dense layer over a pruned vocabulary.
    DSpark: a three-layer MoE backbone a block (dense on a dense model) and a light serial head. N-gram: free.
    """
    if method == "mtp":
        if not card.mtp_layers:
            raise BadInput(f"speculation method mtp: {card.name} has no MTP layers; legal is {list(card.drafters)}")
        return Drafter(method, 1, "target", 1.0, serial=True)
    if method == "eagle3":
        return Drafter(method, 1, "dense", min(1.0, _EAGLE3_VOCAB / card.vocab), serial=True)
    if method == "dspark":
        return Drafter(method, _DSPARK_LAYERS, "moe" if card.is_moe else "dense", 1.0, serial=False)
    return Drafter(method, 0, "none", 0.0, serial=True)


def draft_cost_ratio(
    drafter: Drafter, depth: int, *, layer_ms: float, dense_layer_ms: float, head_ms: float, step_ms: float
) -> float:
    """Modelled draft time over the modelled plain step; anchored mode scales the measured step by it.

    ``layer_ms`` is a target (MoE) layer, ``dense_layer_ms`` a dense one, ``head_ms`` LM head and sampling, all at the
    decode batch.
    """
    layers_ms = drafter.layers * (dense_layer_ms if drafter.kind == "dense" else layer_ms)
    head = drafter.head_share * head_ms
    draft_ms = depth * (layers_ms + head) if drafter.serial else (layers_ms if depth else 0.0) + depth * head
    return draft_ms / step_ms


# ---- which depth ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DepthChoice:
    """Depth with the most tokens a unit of step time; 0 means do not speculate. ``gain`` is over depth 0."""

    depth: int
    tokens_per_step: float
    step_ms: float
    gain: float


def best_depth(max_depth: int, tokens_per_step: Callable[[int], float], step_ms: Callable[[int], float]) -> DepthChoice:
    """Try every depth from 0 (no speculation) and keep the most tokens a ms; ties go to the shallower depth.

    >>> best_depth(2, lambda k: 1 + 0.5 * k, lambda k: 10.0 + 20.0 * k).depth
    0
    """
    tried = [(tokens_per_step(depth), step_ms(depth)) for depth in range(max_depth + 1)]
    depth = max(range(len(tried)), key=lambda k: (tried[k][0] / tried[k][1], -k))
    plain = tried[0][0] / tried[0][1]
    tokens, ms = tried[depth]
    return DepthChoice(depth, tokens, ms, tokens / ms / plain)


def speculation_refusal(anchor: Speculation, target: Speculation) -> str | None:
    """Why an anchor's speculation keeps it from serving the target, or None.

    An anchor with speculation already holds the drafter's cost and acceptance, which cannot be taken out again; another
    depth of the same method is transferred. A plain anchor serves a speculating target through the drafter model.
    """
    if not anchor.active or (target.active and anchor.method == target.method):
        return None
    if not target.active:
        return (
            f"the anchor was measured with {anchor.method} at depth {anchor.depth}, whose drafting and acceptance its "
            "steps contain: a target without speculation needs an anchor without it"
        )
    return f"the anchor was measured with {anchor.method}, the target drafts with {target.method}: other kernels"
