"""Two sides beside each other: every term of every metric, and what each change from B to A gave on its own."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from agent.explain.mechanisms import mechanisms
from agent.explain.sides import Side
from agent.explain.terms import METRICS, Terms, terms, totals
from predictor.errors import InferaSimError
from predictor.predict import predict
from predictor.types import Deployment, PrefillPool

# Fields that move together: a replica count means nothing apart from the widths of a replica.
_PARTS = ("precision", "layout", "replicas", "prefill", "kernels", "speculation", "scheduler", "eplb_redundant")
DEPLOYMENT_PARTS = (*_PARTS, "host_kv_gb")
SMALL_SHARE = 0.01  # of the metric: smaller differences are not told as a cause


@dataclass(frozen=True, slots=True)
class Step:
    """One change on the way from B to A: which parts changed, and the metric before and after."""

    parts: tuple[str, ...]
    before: float
    after: float


def explain(a: Side, b: Side, metric: str | None = None) -> dict[str, Any]:
    """Why A beats B, or does not, as plain JSON; ``metric`` is one of :data:`~agent.explain.terms.METRICS`."""
    found_a, found_b = terms(a), terms(b)
    chosen = metric or metric_for(a.objective)
    a_value, b_value = found_a.total[chosen], found_b.total[chosen]
    return {
        "a": side_json(a, found_a),
        "b": side_json(b, found_b),
        "metric": chosen,
        "a_value": a_value,
        "b_value": b_value,
        "a_beats_b": a_value < b_value,
        "terms": {name: rows(found_a, found_b, name) for name in METRICS},
        "causes": causes(found_a, found_b, chosen),
        "changes": [step_json(step) for step in path(a, b, chosen)],
        "differences": differences(a, b),
        "notes": notes(a, b, found_a, found_b),
    }


def metric_for(objective: str) -> str:
    """The metric that decides an objective: latencies themselves, GPU time for throughputs and costs."""
    named = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "e2e_ms": "e2e_ms"}
    named |= {"interactivity_tok_s_user": "tpot_ms", "decode_step_ms": "tpot_ms", "request_tok_s": "e2e_ms"}
    return named.get(objective, "gpu_ms_per_output_token")


def rows(a: Terms, b: Terms, metric: str) -> list[dict[str, Any]]:
    """Every term that either side has, in the file's order; smaller is better, so a negative difference favours A."""
    mine, theirs = a.by_metric[metric], b.by_metric[metric]
    return [
        {
            "term": name,
            "label": term.label,
            "a": mine.get(name, 0.0),
            "b": theirs.get(name, 0.0),
            "difference": mine.get(name, 0.0) - theirs.get(name, 0.0),
            "mechanism": term.mechanism,
            "reference": term.reference,
        }
        for name, term in mechanisms().terms.items()
        if mine.get(name, 0.0) or theirs.get(name, 0.0)
    ]


def causes(a: Terms, b: Terms, metric: str) -> list[dict[str, Any]]:
    """The terms that decide, largest difference first, each as a sentence."""
    whole = max(a.total[metric], b.total[metric])
    told = [row for row in rows(a, b, metric) if abs(row["difference"]) >= SMALL_SHARE * whole]
    return [{**row, "sentence": sentence(row, metric)} for row in sorted(told, key=lambda row: -abs(row["difference"]))]


def sentence(row: Mapping[str, Any], metric: str) -> str:
    """One term in words."""
    less = row["difference"] < 0
    return (
        f"{row['label']}: A takes {abs(row['difference']):.4g} {METRICS[metric].split(' ', 1)[0]} "
        f"{'less' if less else 'more'} ({row['a']:.4g} against {row['b']:.4g})"
    )


def path(a: Side, b: Side, metric: str) -> Iterator[Step]:
    """B turned into A one part at a time, load first; parts that cannot be priced on their own go with the next.

    The shares depend on the order, their sum does not. Empty where model or GPU differ: nothing lies between them.
    """
    if (a.deployment.model, a.deployment.gpu) != (b.deployment.model, b.deployment.gpu):
        return
    here, before, waiting = b, totals(predict(b.deployment, b.workload, b.catalogue))[metric], []
    for part in changed_parts(a, b):
        waiting.append(part)
        here = moved(here, a, part)
        try:
            after = totals(predict(here.deployment, here.workload, here.catalogue))[metric]
        except InferaSimError:
            continue
        yield Step(tuple(waiting), before, after)
        before, waiting = after, []


def changed_parts(a: Side, b: Side) -> list[str]:
    """Parts in which two sides differ, in the order they are applied."""
    parts = ["workload"] if a.workload != b.workload else []
    parts += ["engine"] if _engine(a.deployment) != _engine(b.deployment) else []
    return parts + [name for name in DEPLOYMENT_PARTS if getattr(a.deployment, name) != getattr(b.deployment, name)]


def _engine(deployment: Deployment) -> tuple[str, str]:
    return deployment.engine, deployment.engine_version


def moved(here: Side, goal: Side, part: str) -> Side:
    """A side with one part of another."""
    if part == "workload":
        return replace(here, workload=goal.workload)
    if part == "engine":
        name, version = _engine(goal.deployment)
        deployment = replace(here.deployment, engine=name, engine_version=version)
        return replace(here, deployment=deployment, catalogue=goal.catalogue)
    return replace(here, deployment=replace(here.deployment, **{part: getattr(goal.deployment, part)}))


def step_json(step: Step) -> dict[str, Any]:
    """A step with its mechanisms."""
    known = [mechanisms().changes[part] for part in step.parts]
    return {
        "parts": list(step.parts),
        "label": " + ".join(one.label for one in known),
        "before": step.before,
        "after": step.after,
        "difference": step.after - step.before,
        "mechanism": "; ".join(one.mechanism for one in known),
        "reference": "; ".join(one.reference for one in known),
    }


def differences(a: Side, b: Side) -> list[dict[str, str]]:
    """Every field of deployment and workload that differs, as text."""
    found: list[dict[str, str]] = []
    for mine, theirs in ((a.deployment, b.deployment), (a.workload, b.workload)):
        for field in fields(mine):
            left, right = getattr(mine, field.name), getattr(theirs, field.name)
            if left != right:
                found += _field_differences(field.name, left, right)
    return found


def _field_differences(name: str, left: Any, right: Any) -> list[dict[str, str]]:
    if hasattr(left, "__dataclass_fields__") and type(left) is type(right):
        pairs = [(f.name, getattr(left, f.name), getattr(right, f.name)) for f in fields(left)]
        return [one for inner, x, y in pairs if x != y for one in _field_differences(f"{name}.{inner}", x, y)]
    return [{"field": name, "a": _shown(left), "b": _shown(right)}]


def _shown(value: Any) -> str:
    if isinstance(value, PrefillPool):
        return f"{value.replicas} x {value.layout.label()} over {value.handoff}"
    if isinstance(value, tuple):
        return " + ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def side_json(side: Side, found: Terms) -> dict[str, Any]:
    """One side's name, headline figures and how it was predicted."""
    prediction = found.prediction
    return {
        "name": side.name,
        "deployment": describe(side.deployment),
        "concurrency": side.workload.concurrency,
        "gpus": prediction.gpus,
        "mode": str(prediction.mode),
        "anchor": prediction.anchor,
        "coverage": str(prediction.coverage),
        "output_tok_s_per_gpu": prediction.output_tok_s_per_gpu,
        "interactivity_tok_s_user": prediction.interactivity_tok_s_user,
        **found.total,
    }


def describe(deployment: Deployment) -> str:
    """A deployment in one line."""
    parts = [deployment.model, deployment.engine, str(deployment.precision.weight)]
    if deployment.prefill is not None:
        pool = deployment.prefill
        parts.append(f"prefill {pool.replicas}x{pool.layout.label()}, decode")
    parts.append(f"{deployment.replicas}x{deployment.layout.label()} on {deployment.gpu}")
    if deployment.speculation.active:
        parts.append(f"{deployment.speculation.method} depth {deployment.speculation.depth}")
    return " ".join(parts)


def notes(a: Side, b: Side, found_a: Terms, found_b: Terms) -> list[str]:
    """What to keep in mind when reading the comparison."""
    said: list[str] = []
    first, second = found_a.prediction, found_b.prediction
    if first.mode != second.mode:
        said.append("one side comes from an anchor, the other from kernel models: their terms are cut differently")
    elif a.deployment.engine != b.deployment.engine and first.anchor is None:
        said.append("kernel models rank within one engine only: the difference between engines is not reliable")
    if (a.deployment.model, a.deployment.gpu) != (b.deployment.model, b.deployment.gpu):
        said.append("model or GPU differ: the changes in between cannot be told apart")
    if (a.workload.isl_tokens, a.workload.osl_tokens) != (b.workload.isl_tokens, b.workload.osl_tokens):
        said.append("the request lengths differ")
    return said
