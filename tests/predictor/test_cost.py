"""Cost of output: arithmetic by hand, through a prediction and as a bound of a search."""

from dataclasses import replace

import pytest

from levers.objectives import parse_slo, violations
from predictor.cost import usd_per_mtok
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Deployment, Workload

CARD, H100, VLLM = model_card("Llama-3.1-8B"), platform("H100"), engine_profile("vllm")
DEPLOYMENT = Deployment("Llama-3.1-8B", "H100", "vLLM", "0.33.0")
WORKLOAD = Workload(1024, 256, 16)


def test_by_hand() -> None:
    # 2 USD an hour at 2,000 tokens a second: 7.2 million tokens an hour
    assert usd_per_mtok(2.0, 2000.0) == pytest.approx(2.0 / 7.2)


def test_a_prediction_has_a_cost_once_there_is_a_price() -> None:
    free = predict(DEPLOYMENT, WORKLOAD, Catalogue(CARD, replace(H100, price_usd_per_gpu_h=None), VLLM))
    paid = predict(DEPLOYMENT, WORKLOAD, Catalogue(CARD, replace(H100, price_usd_per_gpu_h=2.5), VLLM))
    assert "usd_per_mtok" not in free.extras
    assert paid.extras["usd_per_mtok"] == usd_per_mtok(2.5, free.output_tok_s_per_gpu)


def test_cost_is_a_bound() -> None:
    priced = predict(DEPLOYMENT, WORKLOAD, Catalogue(CARD, replace(H100, price_usd_per_gpu_h=2.5), VLLM))
    cost = priced.extras["usd_per_mtok"]
    assert not violations(priced, [parse_slo(f"usd_per_mtok<={cost * 1.01}")])
    (missed,) = violations(priced, [parse_slo(f"usd_per_mtok<={cost * 0.99}")])
    assert missed.code == "slo_usd_per_mtok"
    free = predict(DEPLOYMENT, WORKLOAD, Catalogue(CARD, H100, VLLM))
    (unknown,) = violations(free, [parse_slo("usd_per_mtok<=1")])
    assert unknown.code == "slo_usd_per_mtok_unknown"
    assert "--usd-per-gpu-h" in unknown.message
