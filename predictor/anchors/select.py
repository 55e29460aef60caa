"""Which anchor serves a target: refusals, coverage and flags (paper §3.1.1, §5.1, App. E).

Pure look-ups over a given list. An anchor is *refused* when it was measured on another GPU type, engine or model, or
contains speculation the target does not use. It *matches* when every anchor-defining field is equal. It *covers* the
target when, on top of that, build and layout are the same (TP may be narrower if the anchor is a full sweep) and the
load is within four times its own. What matches or not but does not cover is projected, for ranking only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log2

from predictor.anchors.schema import Anchor
from predictor.errors import AnchorRefused
from predictor.types import Coverage, Deployment, Flag, Workload

# Paper §5.1: measured within 4x of the target's concurrency.
LOAD_FACTOR = 4.0
# "A narrower anchor must be a full batch sweep": fewer points than this are a ladder of loads, not a sweep. The paper's
# own sweeps have 4 to 11 batch sizes (Table 10).
FULL_SWEEP_POINTS = 4
# A prompt length is "near" within this ratio; beyond it the mismatch is flagged (App. E: 41% off between 1k and 8k).
CONTEXT_FACTOR = 1.5


@dataclass(frozen=True, slots=True)
class Selection:
    """The anchor to use, whether it covers the target, and every caveat."""

    anchor: Anchor
    coverage: Coverage
    flags: tuple[Flag, ...]


def refusals(anchor: Anchor, deployment: Deployment) -> tuple[str, ...]:
    """Why this anchor must not be used at all: each differing field with both values."""
    signature = anchor.signature
    reasons = []
    for field, theirs, ours in (
        ("gpu", signature.gpu, deployment.gpu),
        ("engine", signature.engine, deployment.engine),
        ("model", signature.model, deployment.model),
    ):
        if theirs != ours:
            reasons.append(f"{field}: the anchor was measured on {theirs}, the target is {ours}")
    if signature.spec_method != "none" and not deployment.speculation.active:
        reasons.append(
            f"speculation: the anchor contains {signature.spec_method} at depth {signature.spec_depth}, "
            "the target does not speculate"
        )
    elif signature.spec_method not in ("none", deployment.speculation.method):
        reasons.append(
            f"speculation: the anchor contains {signature.spec_method}, the target uses {deployment.speculation.method}"
        )
    if not anchor.provenance.prefix_cache_off:
        reasons.append("prefix cache: it was on during the harvest, so prefill times are too short")
    return tuple(reasons)


def kernel_differences(anchor: Anchor, deployment: Deployment) -> tuple[str, ...]:
    """Anchor-defining fields that differ though the anchor is not refused: the step must be moved by simulated work."""
    signature, precision, kernels = anchor.signature, deployment.precision, deployment.kernels
    pairs = (
        ("weight_dtype", signature.weight_dtype, precision.weight),
        ("linear_dtype", signature.linear_dtype, precision.linear),
        ("expert_dtype", signature.expert_dtype, precision.expert),
        ("kv_dtype", signature.kv_dtype, precision.kv),
        ("attention_backend", signature.attention_backend, kernels.attention),
        ("sparse_topk", signature.sparse_topk, kernels.sparse_topk),
        ("moe_backend", signature.moe_backend, kernels.moe),
        ("a2a_backend", signature.a2a_backend, kernels.a2a),
        ("graph_mode", signature.graph_mode, kernels.graph_mode),
        ("fusions", ", ".join(sorted(signature.fusions)), ", ".join(sorted(kernels.fusions))),
    )
    return tuple(
        f"{field}: anchor {theirs or 'none'}, target {ours or 'none'}"
        for field, theirs, ours in pairs
        if theirs != ours
    )


def assess(anchor: Anchor, deployment: Deployment, workload: Workload) -> Selection:
    """Coverage and flags of one anchor for one target; raises AnchorRefused naming every field that forbids its use."""
    reasons = refusals(anchor, deployment)
    if reasons:
        raise AnchorRefused(f"anchor {anchor.name}: " + "; ".join(reasons))
    signature, layout = anchor.signature, deployment.layout
    flags: list[Flag] = []
    covered = True
    for difference in kernel_differences(anchor, deployment):
        covered = False
        flags.append(Flag("kernel_set_differs", f"{difference}; moved by the ratio of simulated work"))
    if signature.engine_version != deployment.engine_version and signature.engine_version and deployment.engine_version:
        covered = False
        flags.append(
            Flag("other_build", f"anchor build {signature.engine_version}, target {deployment.engine_version}")
        )
    full_sweep = max(len(sweep.points) for sweep in anchor.decode) >= FULL_SWEEP_POINTS
    if layout.tp != signature.tp:
        doublings = log2(layout.tp / signature.tp)
        if layout.tp < signature.tp or not full_sweep:
            covered = False
        flags.append(Flag("width_transferred", f"measured at TP{signature.tp}, moved to TP{layout.tp}"))
        if abs(doublings) > 1:
            flags.append(
                Flag("width_extrapolated", f"TP{signature.tp} to TP{layout.tp} is more than one doubling: extrapolated")
            )
    for field, theirs, ours in (
        ("EP", signature.ep, layout.ep),
        ("attention DP", signature.attn_dp, layout.attn_dp),
        ("DCP", signature.dcp, layout.dcp),
    ):
        if theirs != ours:
            flags.append(Flag("layout_transferred", f"{field} {theirs} measured, {ours} asked"))
            covered = False
    if layout.pp > 1:
        flags.append(Flag("pipeline_restored", f"{layout.pp} stages restored from a one-stage anchor"))
    if deployment.prefill is not None:
        flags.append(Flag("split_restored", "prefill and decode pools restored from a colocated anchor"))
    load = workload.concurrency / max(1, deployment.replicas)
    per_rank = load / layout.attn_dp * signature.attn_dp
    if not anchor.min_batch / LOAD_FACTOR <= per_rank <= anchor.max_batch * LOAD_FACTOR:
        covered = False
        flags.append(
            Flag(
                "load_outside", f"{per_rank:.0f} requests a replica; measured {anchor.min_batch} to {anchor.max_batch}"
            )
        )
    elif per_rank > anchor.max_batch:
        flags.append(Flag("load_extrapolated", f"{per_rank:.0f} requests a replica; measured up to {anchor.max_batch}"))
    sweep = anchor.sweep_for(workload.isl_tokens, workload.osl_tokens)
    ratio = max(sweep.prompt_tokens, workload.isl_tokens) / min(sweep.prompt_tokens, workload.isl_tokens)
    if ratio > CONTEXT_FACTOR:
        flags.append(
            Flag(
                "prompt_length_differs",
                f"steps measured at {sweep.prompt_tokens}-token prompts, asked {workload.isl_tokens}",
            )
        )
    if sweep.kind == "scaled":
        covered = False
        flags.append(
            Flag(
                "scaled_from_one_run",
                "kernel models scaled to one measured run: how the step grows with load and context is not measured",
            )
        )
    elif sweep.determined is False:
        flags.append(Flag("steps_undetermined", "the runs it was solved from do not tell every step apart"))
    if not signature.engine_version:
        covered = False
        flags.append(Flag("build_unknown", "the anchor does not say which engine build it was measured on"))
    if not anchor.provenance.real_weights:
        flags.append(Flag("random_weights", "measured with random weights, which makes an MoE step too fast"))
    if anchor.provenance.coarse:
        flags.append(Flag("coarse_anchor", f"a coarse anchor: {anchor.provenance.source}"))
    return Selection(anchor, Coverage.COVERED if covered else Coverage.PROJECTED, tuple(flags))


def half_width_sibling(anchors: Sequence[Anchor], anchor: Anchor) -> Anchor | None:
    """An anchor of the same kernel set and build harvested at half the TP width, if there is one (paper B.1)."""
    signature = anchor.signature
    if signature.tp % 2 or signature.ep not in (1, signature.tp) or signature.attn_dp > 1 or signature.dcp > 1:
        return None
    half = signature.tp // 2
    wanted = replace(signature, tp=half, ep=half if signature.ep > 1 else 1, capture_sizes=())
    found = [one for one in anchors if replace(one.signature, capture_sizes=()) == wanted]
    return min(found, key=lambda one: one.name, default=None)


def _distance(selection: Selection, deployment: Deployment, workload: Workload) -> tuple[float | str, ...]:
    """Nearest first: covering, same kernels, same build, layout, prompt length; the name breaks ties."""
    anchor = selection.anchor
    signature, layout = anchor.signature, deployment.layout
    sweep = anchor.sweep_for(workload.isl_tokens, workload.osl_tokens)
    return (
        0.0 if selection.coverage is Coverage.COVERED else 1.0,
        float(len(kernel_differences(anchor, deployment))),
        0.0 if signature.engine_version == deployment.engine_version else 1.0,
        float(signature.ep != layout.ep)
        + float(signature.attn_dp != layout.attn_dp)
        + float(signature.dcp != layout.dcp),
        abs(log2(layout.tp / signature.tp)) + (0.5 if layout.tp < signature.tp else 0.0),
        abs(log2(sweep.prompt_tokens / workload.isl_tokens)),
        anchor.name,
    )


def select_anchor(
    anchors: Sequence[Anchor], deployment: Deployment, workload: Workload
) -> tuple[Selection | None, tuple[str, ...]]:
    """The nearest usable anchor, or None, and why each refused one was refused."""
    usable: list[Selection] = []
    refused: list[str] = []
    for anchor in anchors:
        try:
            usable.append(assess(anchor, deployment, workload))
        except AnchorRefused as refusal:
            refused.append(str(refusal))
    usable.sort(key=lambda selection: _distance(selection, deployment, workload))
    return (usable[0] if usable else None), tuple(refused)
