"""Constants of the transfer laws, one set a GPU vendor. None belongs to a model; each says where it comes from."""

from dataclasses import dataclass, field

from predictor.cards import Platform

# Read at import by nothing else: a law takes a set as an argument, so that an eval can score another one.


@dataclass(frozen=True, slots=True)
class TransferConstants:
    """What moves a step between layouts.

    ``stream_share``: share of HBM peak at which attention and dense weights and the cache stream in a step.
    ``expert_prior_share`` and ``prior_weight``: where the expert share of a ladder is drawn to when its own growth does
    not tell, and how strongly. ``growth_exponent``: what is left of the growth with batch shrinks with (w/w')^e.
    ``fixed_min_frac``: least share of the lightest step that is fixed cost. ``allreduce_us`` and ``allreduce_gb_s``:
    cost of one all-reduce inside a step by group size, (gpus, value) rising. ``prefill_allreduce_share``: share of that
    bandwidth a prompt's long messages reach; ``prefill_exponent``: the rest of a prompt's cost goes with (w/w')^e.
    """

    stream_share: float
    expert_prior_share: float
    prior_weight: float
    growth_exponent: float
    fixed_min_frac: float
    allreduce_us: tuple[tuple[int, float], ...]
    allreduce_gb_s: tuple[tuple[int, float], ...]
    prefill_allreduce_share: float
    prefill_exponent: float
    few_experts: bool = False
    sources: dict[str, str] = field(default_factory=dict)


AMD = TransferConstants(
    stream_share=0.6,
    expert_prior_share=1.0,
    prior_weight=0.5,
    growth_exponent=0.5,
    fixed_min_frac=0.1,
    # One-shot custom all-reduce (arXiv 2611.04032 Table 19) and one more kernel's occupancy (Table 5): each waits for
    # the slowest rank.
    allreduce_us=((2, 4.9 + 4.98), (4, 5.5 + 4.98), (8, 6.4 + 4.98)),
    allreduce_gb_s=((2, 60.4), (4, 100.0), (8, 123.0)),
    prefill_allreduce_share=0.62,
    prefill_exponent=1.0,
)
NVIDIA = TransferConstants(
    stream_share=0.8,
    expert_prior_share=1.0,
    prior_weight=0.5,
    growth_exponent=0.7,
    fixed_min_frac=0.2,
    allreduce_us=((2, 4.0), (4, 4.5), (8, 5.5)),
    allreduce_gb_s=((2, 250.0), (4, 280.0), (8, 320.0)),
    prefill_allreduce_share=0.62,
    prefill_exponent=0.7,
)

# One GPU's in-node link of the platform the AMD all-reduce constants were measured on (7 links x 76.8 GB/s one way).
_AMD_REFERENCE_LINK_BYTES_PER_S = 5.38e11


def default_constants(platform: Platform) -> TransferConstants:
    """The set of a platform's vendor."""
    return AMD if platform.vendor == "amd" else NVIDIA


def link_scale(platform: Platform) -> float:
    """How much faster this platform's links are than those the constants were measured on (AMD only)."""
    return platform.link_bytes_per_s / _AMD_REFERENCE_LINK_BYTES_PER_S if platform.vendor == "amd" else 1.0
