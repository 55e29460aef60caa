"""Which engine release a request without one means."""

from collections.abc import Sequence

from predictor.anchors.schema import Anchor
from predictor.cards import EngineProfile


def release(engine: EngineProfile, version: str, anchors: Sequence[Anchor], model: str, gpu: str) -> str:
    """The engine release to predict: the one asked for, else that of an anchor of this model, GPU and engine.

    With several anchored releases the first in the profile's order (newest first) is taken; with none, the newest.
    """
    if version:
        return version
    anchored = {
        anchor.signature.engine_version
        for anchor in anchors
        if (anchor.signature.model, anchor.signature.gpu, anchor.signature.engine) == (model, gpu, engine.name)
    }
    known = [one.version for one in engine.versions]
    return next((one for one in known if one in anchored), known[0])
