"""Transfer laws: one measured kernel set moved to another layout, one mechanism a module."""

from predictor.transfer.constants import TransferConstants, default_constants
from predictor.transfer.context import KernelContext
from predictor.transfer.prefill import move_prefill
from predictor.transfer.width import (
    Shrink,
    WidthLaw,
    equation_1,
    expert_slowness,
    measured_shrink,
    move_decode,
    refine_decode,
)

__all__ = [
    "KernelContext",
    "Shrink",
    "TransferConstants",
    "WidthLaw",
    "default_constants",
    "equation_1",
    "expert_slowness",
    "measured_shrink",
    "move_decode",
    "move_prefill",
    "refine_decode",
]
