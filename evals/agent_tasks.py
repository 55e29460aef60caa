"""Five fixed tuning tasks whose optimum moves several levers together, in spaces small enough to price whole.

All levers but a task's open ones stay at their defaults. The optimum is found by pricing every legal combination of the
open levers' values, so that a regret is a distance from the truth of the predictor, not from another search.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from agent.anchor_files import bundled_anchors
from agent.evaluate import Evaluator, Judged
from agent.request import TuningRequest
from levers.baseline import baseline
from levers.build import with_pins
from levers.catalog import BY_NAME, LEVERS
from levers.legality import illegal_reasons
from levers.objectives import objective
from levers.space import defaults, merge, to_deployment
from predictor.predict import Catalogue
from predictor.types import Deployment, Workload


@dataclass(frozen=True)
class TuningTask:
    """One task: what is asked, which levers are open, and how many evaluations either search gets."""

    name: str
    why: str  # why levers have to move together
    request: TuningRequest
    levers: tuple[str, ...]
    budget: int


@dataclass
class Reference:
    """Every legal combination priced."""

    points: int = 0
    best: Judged | None = None
    changes: dict[str, object] = field(default_factory=dict)


def _request(model: str, cluster: str, engine: str, goal: str, slo: str, load: tuple[int, int, int]) -> TuningRequest:
    isl, osl, clients = load
    return TuningRequest(
        model=model, cluster=cluster, engine=engine, objective=goal, slos=(slo,), isl=isl, osl=osl, concurrency=clients
    )


POOLS = ("tp", "replicas", "disagg", "prefill_tp", "prefill_replicas")
TASKS = (
    TuningTask(
        "split",
        "two half-width replicas halve the queue, which pays only with a token budget that keeps prefill short",
        _request("Qwen3-32B", "H100:8", "vLLM", "ttft_ms", "output_tok_s_per_gpu>=300", (4096, 512, 64)),
        ("tp", "replicas", "token_budget", "max_running"),
        24,
    ),
    TuningTask(
        "cache",
        "a narrow KV cache and width make room for a batch that only a running cap keeps within the bound",
        _request(
            "Llama-3.1-70B", "H100:8", "vLLM", "output_tok_s_per_gpu", "interactivity_tok_s_user>=30", (8192, 1024, 64)
        ).model_copy(update={"free": ("precision",)}),
        ("tp", "replicas", "kv_dtype", "max_running", "dcp"),
        20,
    ),
    TuningTask(
        "pools",
        "a prefill pool pays only when both pools have several replicas; either alone is worse than no pool",
        _request("Llama-3.1-8B", "MI355X:8", "SGLang", "ttft_ms", "tpot_ms<=12", (8192, 512, 64)),
        POOLS,
        32,
    ),
    TuningTask(
        "prompt-heavy",
        "one decode replica needs many narrow prefill replicas before it: fewer, or wider ones, miss the bound on TTFT",
        _request("gpt-oss-120b", "H200:8x2", "vLLM", "output_tok_s_per_gpu", "ttft_ms<=600", (8192, 1024, 128)),
        POOLS,
        32,
    ),
    TuningTask(
        "whole-answer",
        "a wide decode pool shortens the answer only when narrow prefill replicas keep the prompts out of its way",
        _request("Qwen3-32B", "H200:8", "vLLM", "e2e_ms", "tpot_ms<=20", (8192, 1024, 64)),
        POOLS,
        28,
    ),
)  # fmt: skip


def evaluator(task: TuningTask) -> Evaluator:
    """The task's evaluator: everything but its open levers pinned to the defaults."""
    anchors = bundled_anchors()
    context = task.request.context(anchors)
    start = defaults(context)
    pins = {
        lever.name: start[lever.name]
        for lever in LEVERS
        if lever.name not in task.levers and lever.pinned_value(context) is None
    }
    context = with_pins(context, pins)
    usable = tuple(one for one in anchors if one.signature.model == context.card.name)
    catalogue = Catalogue(context.card, context.platform, context.engine, usable)
    return Evaluator(context, catalogue, objective(task.request.objective), task.request.parsed_slos(), memo={})


def reference(task: TuningTask, judge: Evaluator) -> Reference:
    """Price every legal combination of the open levers' values."""
    found = Reference()
    for changes, launched in combinations(task, judge):
        judged = judge.evaluate(*launched)
        found.points += 1
        if judged.legal and (found.best is None or _signed(judged) > _signed(found.best)):
            found.best, found.changes = judged, changes
    return found


def combinations(task: TuningTask, judge: Evaluator) -> Iterator[tuple[dict[str, object], tuple[Deployment, Workload]]]:
    """Distinct deployments that are legal in structure, with what they change in the baseline."""
    context = judge.context
    base = baseline(context)
    seen: set[tuple[Deployment, Workload]] = set()
    for values in product(*(BY_NAME[name].values(context) for name in task.levers)):
        merged = merge(dict(zip(task.levers, values, strict=True)), base, context)
        if merged.setting is None:
            continue
        launched = to_deployment(merged.setting, context)
        if launched not in seen and not illegal_reasons(*launched, context):
            seen.add(launched)
            yield dict(merged.setting.differences(base)), launched


def regret_pct(found: Judged | None, best: Judged) -> float | None:
    """How much worse than the optimum, in percent of it; None where nothing legal was found."""
    if found is None or found.score is None or not best.score:
        return None
    return 100.0 * abs(_signed(best) - _signed(found)) / abs(best.score)


def _signed(judged: Judged) -> float:
    assert judged.signed_score is not None  # a legal trial was priced
    return judged.signed_score
