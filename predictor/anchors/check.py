"""Doubts about an anchor that its own numbers raise (paper App. E). None of them is corrected: they are said."""

from predictor.anchors.schema import Anchor
from predictor.types import Flag

# Paper App. E: a step of N packed tokens costs 0.63-1.39 times a single N-token prompt; bad probes gave 3.6x and 7.1x.
PACKING_RANGE = (0.63, 1.39)
# A step that falls by more than this as the batch grows was measured under another load (repeats differ by 1-4%).
MONOTONE_SLACK = 0.04


def doubts(anchor: Anchor) -> tuple[Flag, ...]:
    """Every doubt, in a fixed order; empty means none."""
    found: list[Flag] = []
    if not anchor.provenance.real_weights:
        found.append(Flag("random_weights", "harvested with random weights: an MoE step comes out too fast"))
    if not anchor.provenance.prefix_cache_off:
        found.append(Flag("prefix_cache_on", "prefix cache was on: prefill times repeat cached prompts; refused"))
    for check in anchor.provenance.checks:
        if not check.passed and check.name not in ("real_weights", "prefix_cache_off"):
            found.append(Flag(f"check_{check.name}", f"harvest check {check.name} failed: {check.detail}"))
    for sweep in anchor.decode:
        for earlier, later in zip(sweep.points, sweep.points[1:], strict=False):
            if later.step_ms < earlier.step_ms * (1.0 - MONOTONE_SLACK):
                found.append(
                    Flag(
                        "not_monotone",
                        f"{sweep.prompt_tokens}-token sweep: batch {later.batch} takes "
                        f"{later.step_ms:g} ms, less than batch {earlier.batch} ({earlier.step_ms:g} ms)",
                    )
                )
        if len(sweep.points) < 4:
            found.append(
                Flag(
                    "short_sweep",
                    f"{sweep.prompt_tokens}-token sweep has {len(sweep.points)} batches: "
                    "not a full sweep, so it does not cover wider layouts",
                )
            )
    probe = anchor.packed_probe
    if probe is not None:
        tokens = probe.sequences * probe.tokens_each
        fit = anchor.prefill
        single = fit.fixed_ms + fit.per_token_ms * tokens + fit.per_token2_ms * tokens**2
        ratio = probe.step_ms / single
        low, high = PACKING_RANGE
        if probe.token_budget < tokens:
            found.append(
                Flag("probe_serialised", f"packed probe: {tokens} tokens exceed the budget {probe.token_budget}")
            )
        elif not low <= ratio <= high:
            found.append(
                Flag(
                    "probe_off", f"packed probe costs {ratio:.2f} times one prompt of its tokens; expected {low}-{high}"
                )
            )
    return tuple(found)
