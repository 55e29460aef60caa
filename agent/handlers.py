"""What commands and HTTP routes call: typed request in, plain JSON out."""

from time import perf_counter
from typing import Any

from agent.anchor_files import load_anchors
from agent.predict_request import PredictRequest, prediction_json
from agent.price import priced
from agent.release import release
from predictor.errors import BadInput
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Mode

MODES: dict[str, Mode | None] = {"auto": None, "anchored": Mode.ANCHORED, "simulate": Mode.SIMULATE}


def predict_once(request: PredictRequest, mode: str = "auto", anchors: str | None = None) -> dict[str, Any]:
    """Predict one deployment; the keys of ``predict --json``."""
    if mode not in MODES:
        raise BadInput(f"mode {mode!r}: must be one of {', '.join(MODES)}")
    started = perf_counter()
    card, profile = model_card(request.model), engine_profile(request.engine)
    hardware = priced(platform(request.gpu), request.usd_per_gpu_h)
    on_hand = load_anchors(anchors) if MODES[mode] is not Mode.SIMULATE else ()
    usable = tuple(anchor for anchor in on_hand if anchor.signature.model == card.name)
    version = release(profile, request.engine_version, usable, card.name, hardware.name)
    deployment = request.deployment(card, hardware.name, profile, version)
    prediction = predict(deployment, request.workload(), Catalogue(card, hardware, profile, usable), mode=MODES[mode])
    return {**prediction_json(prediction), "wall_ms": (perf_counter() - started) * 1000.0}
