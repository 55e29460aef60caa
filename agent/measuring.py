"""How long a measurement holds its GPUs, from predicted steps; for planning, not for billing."""

from predictor.predict import Catalogue, predict
from predictor.reduce import Reduction
from predictor.types import Mode, Workload

WAVE_TOKENS = 64  # output tokens of one single-wave batch
REPEATS = 3  # of each point
START_MINUTES = 4.0  # engine start and weights; assumed: the paper's runs hold GPUs 3.4 minutes besides start-up


def gpu_minutes(found: Reduction, workload: Workload, catalogue: Catalogue) -> float:
    """GPU-minutes of one harvest: start-up, two decode sweeps, the prefill sweep, each point three times."""
    total_ms = 0.0
    for prompt in found.prompt_tokens:
        for batch in found.batches:
            point = Workload(prompt, WAVE_TOKENS, batch, requests_per_client=1)
            prediction = predict(found.run, point, catalogue, mode=Mode.SIMULATE, method="analytic")
            total_ms += REPEATS * prediction.e2e_ms.mean
    for tokens in found.prefill_tokens:
        prediction = predict(found.run, Workload(tokens, 1, 1), catalogue, mode=Mode.SIMULATE, method="analytic")
        total_ms += REPEATS * prediction.ttft_ms.mean
    return round((START_MINUTES + total_ms / 60_000.0) * found.run.gpus, 1)
