"""What commands and HTTP routes call: typed request in, plain JSON out."""

from dataclasses import asdict
from time import perf_counter
from typing import Any

from agent.anchor_files import load_anchors
from agent.predict_request import PredictRequest, prediction_json
from agent.price import priced
from agent.release import release
from predictor.errors import BadInput
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Deployment, Mode

MODES: dict[str, Mode | None] = {"auto": None, "anchored": Mode.ANCHORED, "simulate": Mode.SIMULATE}


def predict_once(
    request: PredictRequest, mode: str = "auto", anchors: str | None = None, method: str = "auto"
) -> dict[str, Any]:
    """Predict one deployment; the keys of ``predict --json``."""
    if mode not in MODES:
        raise BadInput(f"mode {mode!r}: must be one of {', '.join(MODES)}")
    started = perf_counter()
    catalogue, deployment = look_up(request, anchors if MODES[mode] is not Mode.SIMULATE else None)
    prediction = predict(deployment, request.workload(), catalogue, mode=MODES[mode], method=method)
    return {**prediction_json(prediction), "wall_ms": (perf_counter() - started) * 1000.0}


def look_up(request: PredictRequest, anchors: str | None) -> tuple[Catalogue, Deployment]:
    """The records a request names, with the anchors of its model, and the deployment it describes."""
    card, profile = model_card(request.model), engine_profile(request.engine)
    hardware = priced(platform(request.gpu), request.usd_per_gpu_h)
    usable = tuple(anchor for anchor in load_anchors(anchors) if anchor.signature.model == card.name)
    version = release(profile, request.engine_version, usable, card.name, hardware.name)
    return Catalogue(card, hardware, profile, usable), request.deployment(card, hardware.name, profile, version)


def reduce_once(request: PredictRequest, anchors: str | None = None) -> dict[str, Any]:
    """What to measure for a target; the keys of ``reduce --json``."""
    from agent.launching import launch_json
    from agent.measuring import gpu_minutes
    from predictor.reduce import reduce_target

    catalogue, deployment = look_up(request, anchors)
    workload = request.workload()
    card, hardware, profile = catalogue.card, catalogue.platform, catalogue.profile
    found = reduce_target(deployment, workload, card, hardware, profile, catalogue.anchors)
    launch = launch_json(found.run, workload, card, hardware, profile)
    return {
        "serving_anchor": None if found.serving is None else found.serving.anchor.name,
        "nearest_anchor": None if found.nearest is None else found.nearest.anchor.name,
        "nearest_flags": [] if found.nearest is None else [flag.message for flag in found.nearest.flags],
        "refused_anchors": list(found.refused),
        "run": {
            "model": card.name,
            "gpu": hardware.name,
            "engine": profile.name,
            "engine_version": deployment.engine_version,
            "layout": found.run.layout.label(),
            "gpus": found.run.gpus,
            "decode_batches": list(found.batches),
            "decode_prompt_tokens": list(found.prompt_tokens),
            "prefill_tokens": list(found.prefill_tokens),
            "gpu_minutes": gpu_minutes(found, workload, catalogue),
            "launch": launch["commands"],
            "notes": launch["notes"],
        },
        "removed": [asdict(part) for part in found.removed],
    }
