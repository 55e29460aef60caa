"""Constants of the transfer laws, one set a GPU vendor. None belongs to a model; each says where it comes from."""

from dataclasses import dataclass

from predictor.cards import Platform


@dataclass(frozen=True, slots=True)
class TransferConstants:
    """What moves a step between layouts. ``w/w'`` is the anchor's width over the target's.

    ``stream_share``: share of HBM peak at which attention and dense weights and the cache stream inside a step.
    ``expert_prior_share``, ``prior_weight``: where a ladder's expert share is drawn to as far as its own growth does
    not tell, and how strongly. ``growth_exponent``: what no term explains of the growth with batch goes with (w/w')^e.
    ``fixed_min_frac``: least share of the lightest step that is fixed cost. ``sync_kernels``: kernel occupancies that
    an all-reduce added to a step costs beyond its α + m/B, since it waits for the slowest rank. ``simulated_weight``:
    weight of the simulated ratio in the geometric mean with the moved terms. ``host_exponent``: host time of a request
    goes with (w/w')^e. ``prefill_simulated``: prompts move by
    the simulated ratio, else by all-reduces and width, where ``prefill_allreduce_gb_s`` is what long messages reach by
    group size, (gpus, GB/s) rising.
    """

    stream_share: float
    expert_prior_share: float
    prior_weight: float
    growth_exponent: float
    fixed_min_frac: float
    sync_kernels: float
    simulated_weight: float
    host_exponent: float
    prefill_simulated: bool
    prefill_allreduce_gb_s: tuple[tuple[int, float], ...]


AMD = TransferConstants(
    # MI300X, vLLM: 8.4 GB more weights (Ministral-3-8B in bf16 against fp8) cost 2.4 ms a step, 0.66 of HBM peak
    # (vllm-project/recipes); the closed-form study of the public AMD ladders has 0.6.
    stream_share=0.6,
    # Kernels saturate at 0.8 of HBM (arXiv 2611.04032 App. B.3) and a trained router touches 0.78–0.89 of the experts a
    # uniform one does (predictor.expert_load): together the HBM peak.
    expert_prior_share=1.0,
    prior_weight=0.2,
    growth_exponent=0.5,  # neutral: halfway between work every rank repeats (0) and work that is split (1)
    fixed_min_frac=0.1,
    sync_kernels=1.0,
    # No public kernel table covers CDNA, so simulated ratios rest on assumed efficiencies there.
    simulated_weight=0.0,
    host_exponent=0.3,  # no public AMD run records TTFT by width; as on NVIDIA
    prefill_simulated=False,
    # Solved from GLM's published prefill speed-ups on MI355X with SGLang, 1.8 from TP2 to TP4 and 1.32 from TP4 to TP8
    # (arXiv 2611.04032 App. E), and the 94 us a token of its public TP2 ladder, two and four GPUs in the proportion
    # of the custom kernel's bandwidths (Table 19): 0.63 and 0.54 of them are reached.
    prefill_allreduce_gb_s=((2, 38.0), (4, 63.0), (8, 67.0)),
)
NVIDIA = TransferConstants(
    # Slope of GEMM time over weight bytes at 4 to 16 rows: median 0.79 over H100, H200, B200 and B300 and three engines
    # (GEMM tables of aiconfigurator-core 0.12.0).
    stream_share=0.8,
    expert_prior_share=1.0,
    prior_weight=0.2,
    growth_exponent=0.5,
    fixed_min_frac=0.2,
    sync_kernels=1.0,
    # Kernel models of simulate mode are set on public Hopper and Blackwell tables: an estimate as good as the terms.
    simulated_weight=0.5,
    # Part of a request's host time that goes with width: at a light load it cannot be told from prompt work of small
    # chunks, which does (set in the closed-form study of the public NVIDIA corpus).
    host_exponent=0.3,
    prefill_simulated=True,
    prefill_allreduce_gb_s=(),
)

# One GPU's in-node links of the platform the AMD bandwidths were measured on (MI355X, 7 x 76.8 GB/s one way).
_AMD_REFERENCE_LINK_BYTES_PER_S = 5.38e11


def default_constants(platform: Platform) -> TransferConstants:
    """The set of a platform's vendor."""
    return AMD if platform.vendor == "amd" else NVIDIA


def link_scale(platform: Platform) -> float:
    """How much faster this platform's links are than those the AMD bandwidths were measured on."""
    return platform.link_bytes_per_s / _AMD_REFERENCE_LINK_BYTES_PER_S
