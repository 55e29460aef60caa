"""Gated delta net and Mamba-like layers: a state a request instead of a cache a token.

Decode reads and writes the state, ``2·state_bytes·B / (eb·BW)``, whatever the context. Prefill works in chunks of 64
tokens: within a chunk an attention-like product, across chunks an update of the state; both linear in the prompt.
"""

from predictor.kernels.facts import LinearFacts
from predictor.kernels.gpu import Gpu

CHUNK_TOKENS = 64.0  # flash-linear-attention kernels of vLLM, SGLang and TensorRT-LLM
# Bytes a mixed value of the short convolution moves: at decode its 3-tap state is read and written beside input and
# output (2-byte values), at prefill input, output and the halo of each block.
CONV_DECODE_BYTES = 16.0
CONV_PREFILL_BYTES = 8.0


def decode_us_per_request(gpu: Gpu, facts: LinearFacts, state_values: float, state_dtype_bytes: float) -> float:
    """Time to read and write one request's state on this rank, us."""
    return 2.0 * state_values * state_dtype_bytes / (facts.decode_hbm * gpu.hbm_bytes_per_s) * 1e6


def prefill_us_per_token(gpu: Gpu, facts: LinearFacts, value_heads: float, key_dim: float, value_dim: float) -> float:
    """Chunked scan of one prompt token on this rank, us.

    Per token and head: keys against the chunk and the triangular solve ``2·64·(2·dk + dv)``, state read and update
    ``4·dk·dv``.
    """
    within = 2.0 * CHUNK_TOKENS * (2.0 * key_dim + value_dim)
    across = 4.0 * key_dim * value_dim
    return value_heads * (within + across) / (facts.prefill_compute * gpu.peak_bf16_flops) * 1e6
