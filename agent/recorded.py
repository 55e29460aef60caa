"""A recorded trial brought back: what it would deploy, to launch it, verify it, explain it or run its search again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent.predict_request import validated
from agent.request import TuningRequest
from levers.context import SearchContext
from levers.space import POSITION, Setting, normalised, to_deployment
from predictor.anchors.schema import Anchor, parse_anchor
from predictor.errors import BadInput
from predictor.types import Deployment, Workload

if TYPE_CHECKING:
    from ledger.record import TrialRecord
    from ledger.store import Ledger


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """One trial of a search with what it deploys, and the anchors the search had."""

    search_id: int
    trial: "TrialRecord"
    request: TuningRequest
    context: SearchContext
    anchors: tuple[Anchor, ...]
    deployment: Deployment
    workload: Workload

    @property
    def name(self) -> str:
        """``SEARCH:TRIAL``."""
        return f"{self.search_id}:{self.trial.index}"


def parse_trial(text: str) -> tuple[int, int | None]:
    """Read ``SEARCH`` or ``SEARCH:best`` (its best trial), or ``SEARCH:TRIAL``.

    >>> parse_trial("3"), parse_trial("3:17"), parse_trial("3:best")
    ((3, None), (3, 17), (3, None))
    """
    search, _, trial = text.partition(":")
    try:
        return int(search), None if trial in ("", "best") else int(trial)
    except ValueError:
        raise BadInput(f"trial {text!r}: write SEARCH for its best trial, or SEARCH:TRIAL, such as 3:17") from None


def recorded_trial(book: "Ledger", search_id: int, index: int | None) -> RecordedTrial:
    """Read a trial; ``index`` None is the search's best. A refused seed that is no whole setting deploys nothing."""
    stored = book.get_search(search_id)
    if index is None:
        if stored.end is None or stored.end.best_index is None:
            raise BadInput(f"trial '{search_id}:best': the search named no best trial; name one, such as {search_id}:0")
        index = stored.end.best_index
    trial = book.trial(search_id, index)
    texts = [one.text for one in book.inputs(search_id) if one.kind == "anchor"]
    anchors = tuple(parse_anchor(text, f"search {search_id}") for text in texts)
    request = recorded_request(stored.record.request)
    context = request.context(anchors)
    setting = setting_of(trial.levers, f"{search_id}:{index}")
    deployment, workload = to_deployment(setting, context)
    return RecordedTrial(search_id, trial, request, context, anchors, deployment, workload)


def recorded_request(fields: Mapping[str, Any]) -> TuningRequest:
    """The typed request in a search's record, which holds more than the request."""
    return validated(TuningRequest, **{name: fields[name] for name in TuningRequest.model_fields if name in fields})


def setting_of(levers: Mapping[str, Any], name: str) -> Setting:
    """A recorded lever setting; a seed that was refused before it became one cannot be priced."""
    missing = [lever for lever in POSITION if lever not in levers]
    if missing:
        raise BadInput(f"trial {name!r}: was refused before it became a whole setting; choose one that was priced")
    return Setting(tuple(normalised(lever, levers[lever]) for lever in POSITION))
