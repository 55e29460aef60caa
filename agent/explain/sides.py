"""The two deployments of a comparison: a trial of the ledger, or a file with the fields of a predict request."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from agent.anchor_files import load_anchors
from agent.predict_request import PredictRequest, validated
from agent.price import priced
from agent.recorded import parse_trial, recorded_trial
from agent.release import release
from predictor.errors import BadFile, BadInput
from predictor.predict import Catalogue
from predictor.profiles.loader import engine_profile, model_card, platform
from predictor.types import Deployment, Workload

_TRIAL = re.compile(r"(?P<search>\d+):(?P<trial>\d+|best)")


@dataclass(frozen=True, slots=True)
class Side:
    """One deployment under its workload, with the records that price it."""

    name: str
    deployment: Deployment
    workload: Workload
    catalogue: Catalogue
    objective: str = "output_tok_s_per_gpu"


def read_side(text: str, ledger_url: str | None = None, anchors: str | None = None) -> Side:
    """``SEARCH:TRIAL`` or ``SEARCH:best`` of the ledger, else the path of a JSON file."""
    match = _TRIAL.fullmatch(text)
    if match is not None:
        return trial_side(*parse_trial(text), ledger_url)
    return file_side(Path(text), anchors)


def file_side(path: Path, anchors: str | None = None) -> Side:
    """A file with the fields of ``inferasim predict`` as one JSON object."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(
            f"deployment {str(path)!r}: neither SEARCH:TRIAL nor a readable file ({error.strerror})"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadFile(f"{path}: expected one object with the fields of a predict request")
    request = validated(PredictRequest, **fields)
    card, profile = model_card(request.model), engine_profile(request.engine)
    hardware = priced(platform(request.gpu), request.usd_per_gpu_h)
    usable = tuple(one for one in load_anchors(anchors) if one.signature.model == card.name)
    version = release(profile, request.engine_version, usable, card.name, hardware.name)
    deployment = request.deployment(card, hardware.name, profile, version)
    return Side(path.stem, deployment, request.workload(), Catalogue(card, hardware, profile, usable))


def trial_side(search_id: int, trial: int | None, ledger_url: str | None = None) -> Side:
    """A recorded trial (None: the search's best), rebuilt from the search's own request and anchors."""
    from agent.tune import default_ledger
    from ledger import open_ledger

    with open_ledger(ledger_url or default_ledger(), create=False, write=False) as book:
        found = recorded_trial(book, search_id, trial)
    context = found.context
    catalogue = Catalogue(context.card, context.platform, context.engine, found.anchors)
    return Side(found.name, found.deployment, found.workload, catalogue, found.request.objective)
