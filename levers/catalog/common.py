"""Small helpers of the catalogue entries."""

from collections.abc import Callable, Mapping

from levers.context import LeverValue, SearchContext
from levers.lever import Candidates, Default, EngineFlag
from levers.reasons import Reason
from predictor.cards import Attention

VLLM, SGLANG, ATOM, TRTLLM = "vLLM", "SGLang", "ATOM", "TensorRT-LLM"  # names of the engine profiles
ENGINES = (VLLM, SGLANG, ATOM, TRTLLM)


def constant(*values: LeverValue) -> Candidates:
    """The same candidates everywhere."""
    return lambda context: values


def always(value: LeverValue) -> Default:
    """The same default everywhere."""
    return lambda context: value


def flags(
    vllm: str, sglang: str, atom: str, trtllm: str, notes: Mapping[str, str] | None = None
) -> tuple[EngineFlag, ...]:
    """One spelling an engine; ``"flag (default)"`` splits at the last bracket."""
    spelled = zip(ENGINES, (vllm, sglang, atom, trtllm), strict=True)
    return tuple(_flag(engine, text, (notes or {}).get(engine, "")) for engine, text in spelled)


def _flag(engine: str, text: str, note: str) -> EngineFlag:
    if text.endswith(")") and " (" in text:
        name, _, default = text[:-1].rpartition(" (")
        return EngineFlag(engine, name, default, note)
    return EngineFlag(engine, text, "", note)


def title(context: SearchContext) -> str:
    """Engine and release as a person writes them."""
    return f"{context.engine.name} {context.engine_version}".strip()


def only_when(
    code: str, holds: Callable[[SearchContext], bool], off: LeverValue, message: str
) -> Callable[[SearchContext, LeverValue], Reason | None]:
    """Exclusion: every value but ``off`` needs the condition; ``{value}`` and ``{model}`` stand in the message."""

    def rule(context: SearchContext, value: LeverValue) -> Reason | None:
        if value == off or holds(context):
            return None
        return Reason(code, message.format(value=value, model=context.card.name))

    return rule


def is_sparse(attention: Attention) -> bool:
    """Sparse MLA: latent attention with an indexer (DeepSeek V3.2, GLM-5)."""
    return attention.kind == "mla" and attention.index_heads > 0


def attention_class(attention: Attention) -> str:
    """The row of the backend tables a model reads: mha, mla, sparse_mla or compressed."""
    if is_sparse(attention):
        return "sparse_mla"
    return attention.kind if attention.kind in ("mla", "compressed") else "mha"


def is_hybrid(context: SearchContext) -> bool:
    """Whether any layer keeps a recurrent state instead of a KV cache."""
    return any(group.attention.kind == "linear" for group in context.card.groups)


def divisors(number: int) -> tuple[int, ...]:
    """Divisors in ascending order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    return tuple(value for value in range(1, number + 1) if number % value == 0)


def powers_of_two(low: int, high: int) -> tuple[int, ...]:
    """Powers of two from ``low`` to ``high``.

    >>> powers_of_two(1, 9)
    (1, 2, 4, 8)
    """
    values = []
    value = low
    while value <= high:
        values.append(value)
        value *= 2
    return tuple(values)
