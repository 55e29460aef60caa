"""What a second harvest at half the width adds: the width law's own error over a doubling, measured.

With steps at ``w`` and ``w/2`` known, the sibling tells what the width law ``M`` gets wrong over that doubling, and the
same factor is taken for each doubling beyond::

    s'(b) = M_w→w'(b) · (s_w(b) / M_w/2→w(b))^log2(w'/w)

Exact where the law's relative error is the same for every doubling. The paper's measured ρ (B.1) is this for Eq. 1;
it stays a law of its own (``law="eq1"`` with :func:`~predictor.transfer.width.measured_shrink`). Both harvests are no
wider than the anchor, so a target's width is never measured.

Prompts: an anchor's prefill fit tells its fixed part where it has several lengths, and moves by
:mod:`predictor.transfer.prefill` (B.1: only the decode half of a sibling is used). With one length it cannot, and two
widths give a serial and a parallel part instead, coefficient by coefficient (paper Table 18, the fallback width law)::

    T(w) = s + p/w    so    T(w') = T(w) + (T(w/2) − T(w))·(w/w' − 1)
"""

from math import log2

from predictor.errors import AnchorRefused
from predictor.step.curve import DecodeCurve
from predictor.step.model import PrefillCurve
from predictor.transfer.constants import TransferConstants
from predictor.transfer.context import KernelContext
from predictor.transfer.width import WidthLaw, move_decode


def check_sibling(source: KernelContext, sibling: KernelContext) -> None:
    """A sibling differs from its anchor in width alone, and has half of it; raises AnchorRefused otherwise."""
    if sibling.gpus * 2 != source.gpus:
        raise AnchorRefused(
            f"sibling at {sibling.layout.label()}: a measured shrink needs half the anchor's width, "
            f"{source.gpus // 2} of {source.gpus} GPUs"
        )


def move_decode_measured(
    curve: DecodeCurve,
    source: KernelContext,
    target: KernelContext,
    half_curve: DecodeCurve,
    half: KernelContext,
    law: WidthLaw = "combined",
    constants: TransferConstants | None = None,
    slowness: tuple[float | None, float | None] = (None, None),
) -> DecodeCurve:
    """Carry a sweep to a wider layout with the law's error over the last doubling taken out.

    ``half_curve`` is the sibling's sweep and ``half`` its side; ``slowness`` of expert reads of anchor and sibling,
    where several sweeps told it. Identity at equal layout.
    """
    check_sibling(source, half)
    moved = move_decode(curve, source, target, law, constants, slowness=slowness[0])
    if source == target:
        return moved
    between = move_decode(half_curve, half, source, law, constants, slowness=slowness[1])
    doublings = log2(target.gpus / source.gpus)
    error = DecodeCurve(
        curve.batches,
        tuple(step / between.at(b) for b, step in zip(curve.batches, curve.step_ms, strict=True)),
        curve.context_tokens,
    )
    steps = tuple(step * error.at(b) ** doublings for b, step in zip(moved.batches, moved.step_ms, strict=True))
    return DecodeCurve(moved.batches, steps, moved.context_tokens, moved.tail_ms_per_request)


def serial_parallel_prefill(
    curve: PrefillCurve, half_curve: PrefillCurve, width: int, target_width: int
) -> PrefillCurve:
    """Prompt coefficients as a serial part and one that width divides (paper Table 18).

    >>> anchor, half = PrefillCurve(0.0, 3.0, 0.0, 0.0), PrefillCurve(0.0, 5.0, 0.0, 0.0)
    >>> serial_parallel_prefill(anchor, half, 4, 8).per_token_ms
    2.0
    """
    share = width / target_width - 1.0

    def at(wide: float, narrow: float) -> float:
        # A sibling that is faster than the wider anchor says that nothing is parallel; one over twice as slow, all.
        parallel = min(max(narrow - wide, 0.0), wide)
        return wide + parallel * share

    return PrefillCurve(
        fixed_ms=at(curve.fixed_ms, half_curve.fixed_ms),
        per_token_ms=at(curve.per_token_ms, half_curve.per_token_ms),
        per_token2_ms=at(curve.per_token2_ms, half_curve.per_token2_ms),
        mixed_fixed_ms=curve.mixed_fixed_ms,
        per_request_ms=curve.per_request_ms,
    )
