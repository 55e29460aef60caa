"""Public API for notebooks and scripts: predict a deployment, without the command line.

>>> from inferasim import Catalogue, Deployment, Workload, engine_profile, model_card, platform, predict
>>> catalogue = Catalogue(model_card("Llama-3.1-8B"), platform("H100"), engine_profile("vllm"))
>>> deployment = Deployment("Llama-3.1-8B", "H100", "vLLM", "0.33.0")
>>> predict(deployment, Workload(1024, 256, concurrency=16), catalogue).mode
<Mode.SIMULATE: 'simulate'>
"""

from predictor.anchors.schema import Anchor, parse_anchor
from predictor.errors import AnchorRefused, BadInput, DoesNotFit, InferaSimError
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import (
    Deployment,
    Dtype,
    Layout,
    Mode,
    Precision,
    Prediction,
    PrefillPool,
    SchedulerSettings,
    Speculation,
    Workload,
)

__all__ = [
    "Anchor",
    "AnchorRefused",
    "BadInput",
    "Catalogue",
    "Deployment",
    "DoesNotFit",
    "Dtype",
    "InferaSimError",
    "Layout",
    "Mode",
    "Precision",
    "Prediction",
    "PrefillPool",
    "SchedulerSettings",
    "Speculation",
    "Workload",
    "engine_profile",
    "model_card",
    "parse_anchor",
    "platform",
    "predict",
]
