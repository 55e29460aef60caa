"""Gated delta net and Mamba-like layers: a state a request instead of a cache a token.

Decode reads and writes the state, ``2·state_bytes·B / (eb·BW)``, whatever the context. Prefill works in chunks of 64
tokens: within a chunk an attention-like product, across chunks an update of the state; both linear in the prompt.
"""

from predictor.kernels.gpu import Gpu

CHUNK_TOKENS = 64.0  # flash-linear-attention kernels of vLLM, SGLang and TensorRT-LLM
PREFILL_COMPUTE = 0.15  # share of the bf16 peak: short products with many exponentials between them


def decode_us_per_request(gpu: Gpu, state_values: float, state_dtype_bytes: float) -> float:
    """Time to read and write one request's state on this rank, us."""
    return 2.0 * state_values * state_dtype_bytes / (gpu.constants.hbm_stream * gpu.hbm_bytes_per_s) * 1e6


def prefill_us_per_token(gpu: Gpu, value_heads: int, key_dim: int, value_dim: int) -> float:
    """Chunked scan of one prompt token on this rank, us.

    Per token and head: keys against the chunk and the triangular solve ``2·64·(2·dk + dv)``, state read and update
    ``4·dk·dv``.
    """
    within = 2.0 * CHUNK_TOKENS * (2.0 * key_dim + value_dim)
    across = 4.0 * key_dim * value_dim
    return value_heads * (within + across) / (PREFILL_COMPUTE * gpu.peak_bf16_flops) * 1e6
