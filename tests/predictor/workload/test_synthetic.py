"""Synthetic lengths and arrivals."""

from itertools import islice

import numpy as np
import pytest

from predictor.errors import BadInput
from predictor.types import Arrival, Workload
from predictor.workload.synthetic import arrival_gaps_ms, lengths


def test_lengths_are_uniform_on_the_range_and_repeat_with_the_seed() -> None:
    workload = Workload(1000, 500, length_range_frac=0.8, seed=7)
    drawn = list(islice(lengths(workload, 1), 9000))
    again = list(islice(lengths(workload, 1), 9000))
    other = list(islice(lengths(workload, 2), 9000))
    assert drawn == again != other
    prompts, outputs = zip(*drawn, strict=True)
    assert (min(prompts), max(prompts), min(outputs), max(outputs)) == (800, 1000, 400, 500)
    assert np.mean(prompts) == pytest.approx(900, abs=2)


@pytest.mark.parametrize(
    ("arrival", "burstiness", "variation"),
    [(Arrival.CONSTANT, 1.0, 0.0), (Arrival.POISSON, 9.0, 1.0), (Arrival.GAMMA, 4.0, 0.5), (Arrival.GAMMA, 0.25, 2.0)],
)
def test_gaps_have_the_rate_and_the_spread(arrival: Arrival, burstiness: float, variation: float) -> None:
    workload = Workload(1, 1, arrival=arrival, request_rate_per_s=8.0, burstiness=burstiness)
    gaps = list(islice(arrival_gaps_ms(workload, 0), 60_000))
    assert np.mean(gaps) == pytest.approx(125.0, rel=0.03)
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(variation, abs=0.05)


def test_open_traffic_needs_a_rate() -> None:
    workload = Workload(1, 1, arrival=Arrival.POISSON)
    with pytest.raises(BadInput, match="request_rate_per_s is None"):
        next(arrival_gaps_ms(workload, 0))
