"""The five inputs of the planner and the investigation loop (paper App. J), as compact JSON within the context window.

Every text that comes from a file or from outside passes the redactor, and reaches a prompt only as a JSON string.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.evaluate import Evaluator, Judged
from agent.llm.detail import FULL, RECENT_TRIALS, Detail
from agent.llm.guards import Redactor
from agent.search import Trial
from levers.catalog import LEVERS
from levers.context import SearchContext
from levers.lever import Lever
from levers.objectives import OBJECTIVES
from levers.space import Setting, as_json_value
from predictor.cards import ModelCard

SHORT_REASON = 160  # characters of a refusal's sentence
METRICS = ("ttft_ms", "tpot_ms", "output_tok_s_per_gpu", "total_tok_s_per_gpu", "gpus", "running", "max_concurrency")
FIXED_NAMES = ("architecture", "cluster", "levers", "objective")  # the same in every prompt of a search
MAIN_FIELDS = ("name", "layers", "hidden", "attention", "heads", "kv_heads", "mtp_layers", "drafters", "moe")
HOW_MUCH_IS_LEFT_OUT = "read_legal with a lever's name tells"


@dataclass(frozen=True, slots=True)
class Inputs:
    """The parts that stay the same over a search, and what shapes the rest."""

    evaluator: Evaluator
    base: Setting
    redactor: Redactor

    def fixed(self, detail: Detail = FULL) -> dict[str, Any]:
        """Architecture, cluster, legal sets and objective."""
        context = self.evaluator.context
        card, goal = architecture(context.card), objective(self.evaluator)
        values = {
            "architecture": card if detail.card else {name: card[name] for name in MAIN_FIELDS if name in card},
            "cluster": cluster(context),
            "levers": legal_values(context) if detail == FULL else shortened(legal_values(context), detail),
            "objective": goal if detail.goal else {name: goal[name] for name in goal if name != "definition"},
        }
        return {name: self.redactor.value(value, 400) for name, value in values.items()}

    def texts(self, trials: Sequence[Trial], best: Trial | None, detail: Detail = FULL) -> dict[str, str]:
        """The five inputs as JSON texts."""
        fixed = {name: compact(value) for name, value in self.fixed(detail).items()}
        return {**fixed, "trials": compact(self.redactor.value(self.history(trials, best, detail), 400))}

    def history(self, trials: Sequence[Trial], best: Trial | None, detail: Detail = FULL) -> dict[str, Any]:
        """The best trial, and the most recent ones in order."""
        recent = trials[-detail.trials :] if detail.trials else ()
        found: dict[str, Any] = {
            "tried": len(trials),
            "best": None if best is None else self.row(best, figures=detail.figures),
            "baseline": self.row(trials[0], figures=detail.figures) if trials else None,
            "recent": [self.row(trial, figures=detail.figures) for trial in recent],
        }
        if len(recent) < min(len(trials), RECENT_TRIALS):
            found["left_out"] = f"{len(trials) - len(recent)} older trials; read_history tells the newest"
        return found

    def row(self, trial: Trial, *, figures: bool = True) -> dict[str, Any]:
        """One trial: what it changed in the baseline and what came of it."""
        told = outcome(trial.judged)
        if not figures:
            told = {name: value for name, value in told.items() if name not in ("metrics", "fusions_worth_it")}
        return {"trial": trial.index, "by": trial.origin, "set": self.changes(trial.levers), **told}

    def changes(self, levers: Mapping[str, Any]) -> dict[str, Any]:
        """What a setting changes in the baseline; of a refused proposal what it named."""
        base = self.base.as_json()
        return {name: value for name, value in levers.items() if name not in base or base[name] != value}


def outcome(judged: Judged) -> dict[str, Any]:
    """What a tool or a history row says of a verdict."""
    metrics = judged.metrics()
    found: dict[str, Any] = {"legal": judged.legal}
    if judged.score is not None:
        found["score"] = rounded(judged.score)
        found |= {} if judged.signed_score == judged.score else {"signed_score": rounded(judged.signed_score)}
    if judged.reasons:
        found["why_not"] = [f"{reason.code}: {reason.message}"[:SHORT_REASON] for reason in judged.reasons[:4]]
    if metrics:
        found["metrics"] = {name: rounded(metrics[name]) for name in METRICS if name in metrics}
    if judged.fusions:
        found["fusions_worth_it"] = [fusion.name for fusion in judged.fusions]
    return found


def rounded(value: float | None) -> float | None:
    """Four figures: prompts need no more, and the ledger holds the rest."""
    return None if value is None else float(f"{value:.4g}")


def architecture(card: ModelCard) -> dict[str, Any]:
    """The architecture record: layers, hidden size, heads, MoE and sparse-attention fields."""
    attention = card.attention
    fields: dict[str, Any] = {
        "name": card.name,
        "layers": card.layers,
        "hidden": card.hidden,
        "attention": attention.kind,
        "heads": attention.heads,
        "kv_heads": attention.kv_heads or None,
        "window": attention.window or None,
        "sparse_topk": attention.index_topk or None,
        "context_tokens": card.max_context_tokens,
        "mtp_layers": card.mtp_layers or None,
        "drafters": list(card.drafters) or None,
        "checkpoints": [str(one) for one in card.weight_dtypes],
        "total_params": rounded(card.published.total_params),
        "active_params": rounded(card.published.active_params),
    }
    if card.moe is not None:
        moe = card.moe
        fields["moe"] = {"experts": moe.experts, "topk": moe.topk, "width": moe.moe_intermediate}
        fields["moe"] |= {"shared_experts": moe.shared_experts} if moe.shared_experts else {}
    return {name: value for name, value in fields.items() if value is not None}


def cluster(context: SearchContext) -> dict[str, Any]:
    """The target cluster and engine."""
    platform = context.platform
    return {
        "gpu": platform.name,
        "nodes": context.cluster.nodes,
        "gpus_per_node": context.cluster.gpus_per_node,
        "hbm_gib_per_gpu": rounded(platform.hbm_bytes / 2.0**30),
        "hbm_tb_s": rounded(platform.hbm_bytes_per_s / 1e12),
        "engine": context.engine.name,
        "engine_version": context.engine_version,
    }


def legal_values(context: SearchContext) -> dict[str, Any]:
    """The legal set of every lever: values to try, the range where numbers between them are legal; pins apart."""
    open_levers = [lever for lever in LEVERS if len(values_of(lever, context)) > 1 or lever_range(lever, context)]
    names = {lever.name for lever in open_levers}
    fixed = {
        lever.name: values_of(lever, context)[0]
        for lever in LEVERS
        if lever.name not in names and values_of(lever, context)
    }
    return {"open": {lever.name: lever_entry(lever, context) for lever in open_levers}, "fixed": fixed}


def shortened(levers: Mapping[str, Any], detail: Detail) -> dict[str, Any]:
    """Legal sets with fewer values, and a word on what is missing; a range and names to combine stay whole."""
    left_out = []
    entries: dict[str, Any] = {}
    for name, entry in levers["open"].items():
        values = entry if isinstance(entry, list) else entry.get("values", [])
        kept = spread(values, detail.values)
        entries[name] = kept if isinstance(entry, list) else {**entry, **({"values": kept} if values else {})}
        left_out += [name] if len(kept) < len(values) else []
    found: dict[str, Any] = {"open": entries}
    if detail.fixed_levers:
        found["fixed"] = levers["fixed"]
    said = [] if detail.fixed_levers else [f"{len(levers['fixed'])} levers that cannot be changed"]
    said += [f"values of {', '.join(left_out)}"] if left_out else []
    return {**found, **({"left_out": f"{'; '.join(said)}: {HOW_MUCH_IS_LEFT_OUT}"} if said else {})}


def spread(values: list[Any], most: int) -> list[Any]:
    """At most ``most`` values, the ends among them and the rest evenly between.

    >>> spread([1, 2, 4, 8, 16], 3), spread(["a", "b"], 3)
    ([1, 4, 16], ['a', 'b'])
    """
    if len(values) <= most:
        return values
    return [values[round(place * (len(values) - 1) / (most - 1))] for place in range(most)]


def values_of(lever: Lever, context: SearchContext) -> list[Any]:
    """Values a search may try, as JSON holds them."""
    return [as_json_value(value) for value in lever.values(context)]


def lever_range(lever: Lever, context: SearchContext) -> list[float] | None:
    """The numbers accepted beside the listed values."""
    if lever.accepts is None or lever.pinned_value(context) is not None:
        return None
    return [lever.accepts.low, lever.accepts.high]


def lever_entry(lever: Lever, context: SearchContext) -> Any:
    """One open lever: its values, or values and range; of lists of names, the names that may be combined."""
    if lever.name == "fusions":
        names = dict.fromkeys(name for value in lever.values(context) if isinstance(value, tuple) for name in value)
        return {"any_of": list(names)}
    values, accepted = values_of(lever, context), lever_range(lever, context)
    return values if accepted is None else {"values": values, "range": accepted}


def objective(evaluator: Evaluator) -> dict[str, Any]:
    """What to optimise, what must hold, and the traffic."""
    goal, load = evaluator.objective, evaluator.context.workload
    traffic: dict[str, Any] = {
        "input_tokens": load.isl_tokens,
        "output_tokens": load.osl_tokens,
        "clients": load.concurrency,
        "arrival": str(load.arrival),
    }
    traffic |= {"requests_per_s": load.request_rate_per_s} if load.request_rate_per_s else {}
    traffic |= {"prefix_hit": load.prefix_hit_frac} if load.prefix_hit_frac else {}
    return {
        "name": goal.name,
        "unit": goal.unit,
        "direction": str(goal.direction),
        "definition": next(one.definition for one in OBJECTIVES if one.name == goal.name),
        "bounds": [slo.text for slo in evaluator.slos],
        "traffic": traffic,
    }


def compact(value: Any) -> str:
    """JSON without spaces; what came from outside stays inside its quotes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=str)
