"""The two deployments of a comparison: a trial of the ledger, or a file with the fields of a predict request."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.anchor_files import load_anchors
from agent.predict_request import PredictRequest, validated
from agent.price import priced
from agent.release import release
from agent.request import TuningRequest
from levers.space import POSITION, Setting, normalised, to_deployment
from predictor.anchors.schema import Anchor
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
        return trial_side(int(match["search"]), match["trial"], ledger_url)
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


def trial_side(search_id: int, trial: str, ledger_url: str | None = None) -> Side:
    """A recorded trial, rebuilt from the search's own request and anchors."""
    from agent.tune import default_ledger
    from ledger import open_ledger
    from ledger.queries import best_trial

    with open_ledger(ledger_url or default_ledger(), create=False, write=False) as book:
        search = book.get_search(search_id)
        recorded = best_trial(book, search) if trial == "best" else book.trial(search_id, int(trial))
        texts = [one.text for one in book.inputs(search_id) if one.kind == "anchor"]
    if recorded is None:
        raise BadInput(f"trial '{search_id}:best': the search named no best trial")
    anchors = tuple(Anchor.model_validate_json(text) for text in texts)
    request = recorded_request(search.record.request)
    context = request.context(anchors)
    setting = setting_of(recorded.levers, f"{search_id}:{recorded.index}")
    deployment, workload = to_deployment(setting, context)
    catalogue = Catalogue(context.card, context.platform, context.engine, anchors)
    return Side(f"{search_id}:{recorded.index}", deployment, workload, catalogue, request.objective)


def recorded_request(fields: Mapping[str, Any]) -> TuningRequest:
    """The typed request in a search's record, which holds more than the request."""
    return validated(TuningRequest, **{name: fields[name] for name in TuningRequest.model_fields if name in fields})


def setting_of(levers: Mapping[str, Any], name: str) -> Setting:
    """A recorded lever setting; a seed that was refused before it became one cannot be priced."""
    missing = [lever for lever in POSITION if lever not in levers]
    if missing:
        raise BadInput(f"trial {name!r}: was refused before it became a whole setting; choose one that was priced")
    return Setting(tuple(normalised(lever, levers[lever]) for lever in POSITION))
