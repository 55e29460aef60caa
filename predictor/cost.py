"""What a deployment costs to run: GPU hours at a price the operator gives."""

_SECONDS_PER_HOUR = 3600.0
_TOKENS_PER_MTOK = 1e6


def usd_per_mtok(usd_per_gpu_h: float, output_tok_s_per_gpu: float) -> float:
    """US dollars for a million output tokens: ``price / (3600 · output tokens a second and GPU) · 10⁶``.

    Prompt tokens are in it as the GPU time they take, not as tokens sold.

    >>> usd_per_mtok(3.6, 1000.0)
    1.0
    """
    return usd_per_gpu_h / (_SECONDS_PER_HOUR * output_tok_s_per_gpu) * _TOKENS_PER_MTOK
