"""Pipelines on the paper's Table 20: every row with several stages, predicted from the one-stage rows.

Each (model, prompt length) has an anchor made from its own one-stage rows alone; nothing is fitted to a row with
several stages. Beside our model stands the paper's serial one, computed by the same script: p stages of 1/p of the
step each, and p - 1 activation transfers of a few KiB, so that TPOT does not change with depth.
"""

import argparse
from collections import defaultdict
from collections.abc import Mapping
from statistics import median
from typing import Any

from evals.bundle_anchors import Row, anchor, table20
from evals.corpus import data_dir, parser, run
from predictor.errors import BadFile
from predictor.predict import Catalogue, predict
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.step.curve import DecodeCurve
from predictor.types import Deployment, Layout, Prediction, Workload

OUTPUT_TOKENS = 1024
TARGET_PCT = {"Llama-3.1-8B": 6.0, "Qwen3-14B-FP8": 2.3, "Qwen3.6-35B-A3B": 6.0}
PAPER_PCT = {"Llama-3.1-8B": 7.2, "Qwen3-14B-FP8": 2.3, "Qwen3.6-35B-A3B": 9.2}


def predict_row(row: Row, one_stage: list[Row]) -> Prediction:
    """One row of several stages, from an anchor of the one-stage rows of its model and prompt length."""
    source = anchor(row["model"], one_stage)
    signature = source.signature
    deployment = Deployment(
        model=signature.model,
        gpu=signature.gpu,
        engine=signature.engine,
        engine_version=signature.engine_version,
        layout=Layout(tp=int(row["tp"]), pp=int(row["pp"])),
        precision=signature.precision,
    )
    workload = Workload(int(row["isl"]), OUTPUT_TOKENS, int(row["concurrency"]))
    catalogue = Catalogue(model_card(signature.model), platform(signature.gpu), engine_profile(signature.engine))
    return predict(deployment, workload, catalogue, anchor=source)


def serial_tpot_ms(row: Row, one_stage: list[Row]) -> float:
    """The serial model: the one-stage TPOT at the same number of clients, whatever the depth.

    A wider stage shrinks the whole step with the width, as a model without a fixed part would.
    """
    clients = {int(other["concurrency"]): float(other["measured_tpot_ms"]) for other in one_stage}
    curve = DecodeCurve(tuple(sorted(clients)), tuple(clients[size] for size in sorted(clients)), 0.0)
    return curve.at(int(row["concurrency"])) / int(row["tp"])


def error_pct(predicted: float, measured: float) -> float:
    """Signed relative error in percent."""
    return 100.0 * (predicted / measured - 1.0)


def median_ape(rows: list[dict[str, Any]], key: str) -> float:
    """Median absolute error of one column."""
    return round(float(median(abs(row[key]) for row in rows)), 3)


def evaluate(args: argparse.Namespace) -> Mapping[str, Any]:
    """Score every row with more than one stage."""
    rows = table20(data_dir(args.corpus))
    one_stage: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["pp"] == "1" and row["tp"] == "1":
            one_stage[row["model"], row["isl"]].append(row)
    scored: list[dict[str, Any]] = []
    for row in rows:
        if row["pp"] == "1":
            continue
        anchors = one_stage.get((row["model"], row["isl"]))
        if not anchors:
            raise BadFile(f"table20_pipeline.csv: no one-stage row of {row['model']} at {row['isl']} prompt tokens")
        prediction = predict_row(row, anchors)
        tpot, ttft, tput = (float(row[f"measured_{name}"]) for name in ("tpot_ms", "ttft_ms", "output_tok_s"))
        scored.append(
            {
                **{name: row[name] for name in ("model", "isl", "tp", "pp", "concurrency")},
                "measured_tpot_ms": tpot,
                "tpot_ms": prediction.tpot_ms.mean,
                "tpot_error_pct": error_pct(prediction.tpot_ms.mean, tpot),
                "serial_tpot_error_pct": error_pct(serial_tpot_ms(row, anchors), tpot),
                "paper_tpot_error_pct": float(row["paper_err_tpot_pct"]),
                "ttft_error_pct": error_pct(prediction.ttft_ms.mean, ttft),
                "tput_error_pct": error_pct(prediction.output_tok_s, tput),
            }
        )
    models = {}
    for model in dict.fromkeys(str(row["model"]) for row in scored):
        mine = [row for row in scored if row["model"] == model]
        models[model] = {
            "n": len(mine),
            "tpot_median_ape_pct": median_ape(mine, "tpot_error_pct"),
            "serial_tpot_median_ape_pct": median_ape(mine, "serial_tpot_error_pct"),
            "ttft_median_ape_pct": median_ape(mine, "ttft_error_pct"),
            "tput_median_ape_pct": median_ape(mine, "tput_error_pct"),
            "target_tpot_median_ape_pct": TARGET_PCT.get(model),
            "paper_tpot_median_ape_pct": PAPER_PCT.get(model),
        }
    return {"models": models, "rows": scored}


if __name__ == "__main__":
    raise SystemExit(run(evaluate, parser(__doc__ or "")))
