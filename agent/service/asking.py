"""Requests for searches, in words or fields, read by rule or with a language model: run by small processes.

Reading with a language model takes seconds and its libraries much memory, so a process of its own does it; everything
else is read where other quick questions are answered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent.predict_request import validated
from agent.request import TuningRequest
from agent.service.problems import Failed, Problem, public
from agent.service.questions import Asked, book_of, bounds, named_model, plain
from agent.service.settings import ServiceSettings
from ledger.queue import Job, NewJob, Queue
from ledger.record import NoteRecord
from predictor.errors import BadInput

if TYPE_CHECKING:
    from agent.llm.session import Session
    from agent.llm.text_request import Reading

NO_MODEL = "this service has no language model: its operator sets INFERASIM_LLM_MODEL"


@dataclass(frozen=True, slots=True)
class Wish:
    """A search as it was asked for, before anything of it was understood. ``planner``: auto, seed or llm."""

    fields: Mapping[str, Any]
    text: str = ""
    accept: bool = False
    planner: str = "auto"

    def as_json(self) -> dict[str, Any]:
        """What decides whether two requests are the same."""
        return {"fields": plain(self.fields), "text": self.text, "accept": self.accept, "planner": self.planner}


@dataclass(slots=True)
class Understood:
    """A text as it was read, and the language model that took part."""

    reading: "Reading | None" = None
    session: "Session | None" = None
    notes: list[NoteRecord] = field(default_factory=list)

    def as_json(self) -> dict[str, Any] | None:
        """As an answer shows it; None for a request without text."""
        if self.reading is None:
            return None
        flag = self.reading.flag
        told = None if flag is None else {"code": flag[0], "message": public(flag[1])}
        read_by = "rules" if self.session is None or flag is not None else "language model and rules"
        return plain({**self.reading.as_json(), "read_by": read_by, "flag": told})


def understand(text: str, with_llm: bool) -> Understood:
    """Read a text as ``tune`` does."""
    from agent.llm.text_request import read_request

    session = None
    if with_llm:
        from agent.llm.session import open_session

        session = open_session()
    found = Understood(session=session)
    if text:
        found.reading = read_request(text, None if session is None else session.read_form)
    return found


def read_text(text: str, with_llm: bool) -> dict[str, Any]:
    """What a request in words is understood to ask for; nothing is submitted."""
    found = understand(text, with_llm)
    reading, answer = found.reading, found.as_json()
    if reading is None or answer is None:
        raise BadInput("text '': say what to tune")
    proposals: dict[str, Any] = {}
    for question in reading.questions:
        proposals |= dict(question.proposal or {})
    asked = [
        {"field": one.field, "question": one.text, "proposal": None if one.proposal is None else dict(one.proposal)}
        for one in reading.questions
    ]
    return {**answer, "questions": asked, "fields": dict(reading.fields), "proposals": proposals}


def submit_tune(
    settings: ServiceSettings, wish: Wish, with_llm: bool, asked: Asked
) -> tuple[Job, bool, dict[str, Any] | None]:
    """Check a request as ``tune`` does, record its search, and queue it; also how its text was read.

    A request whose key is known is answered from the queue: no language model is asked twice.
    """
    from agent.anchor_files import load_anchors
    from agent.tune import prepare

    new = NewJob("tune", asked.caller, {"sent": wish.as_json()}, asked.key)
    queue = Queue(book_of(settings.ledger_url), settings.lease_s)
    before = queue.known(new)
    if before is not None:
        return before, False, recorded_reading(settings, before)
    found = understand(wish.text, with_llm)
    request = checked(settings, wish, found)
    prepared = prepare(request, load_anchors(settings.anchors_folder), planner_of(found.session, request.guidance))
    first = (prepared.record, prepared.files)
    job, fresh = queue.submit(new, bounds(settings), first, notes=first_notes(found, wish.text))
    return job, fresh, found.as_json()


def checked(settings: ServiceSettings, wish: Wish, found: Understood) -> TuningRequest:
    """The typed request: fields win over the text; what stays open is a problem that holds the questions."""
    given = dict(wish.fields)
    if given.get("guidance"):
        from agent.llm.guards import Redactor

        given["guidance"] = Redactor().text(given["guidance"])
    if found.reading is not None:
        given = settled(wish, given, found)
    for name in ("model", "cluster", "engine"):
        if name not in given:
            raise BadInput(f"{name}: is left out; say it, or describe the whole request in text")
    request = validated(TuningRequest, **{"objective": "output_tok_s_per_gpu", **given})
    named_model(request.model)
    if request.budget > settings.max_budget:
        raise BadInput(f"budget {request.budget}: this service allows {settings.max_budget} trials at most")
    return request


def settled(wish: Wish, given: Mapping[str, Any], found: Understood) -> dict[str, Any]:
    """The fields of a text and of what was given; open questions go back, with who read the text."""
    from agent.llm.text_request import NeedsAnswer, settle

    assert found.reading is not None
    try:
        return settle(found.reading, given, wish.accept)
    except NeedsAnswer as error:
        reading = found.as_json() or {}
        detail = str(error).replace("--yes accepts", "accept=true accepts")
        if found.session is None:
            detail += f" [read by rule alone: {NO_MODEL}]"
        elif reading["flag"] is not None:
            detail += f" [{reading['flag']['message']}]"
        raise Failed(Problem(422, "bad-input", public(detail), more={"reading": reading})) from None


def first_notes(found: Understood, text: str) -> list[NoteRecord]:
    """How a language model read the request, and what asking it cost: the first notes of its search."""
    from agent.llm.session import call_note

    if found.session is None or found.reading is None:
        return []
    clean = found.session.redactor
    facts = {"text": clean.text(text), **clean.value(found.as_json() or {})}
    return [NoteRecord("request", facts), *(call_note(call, None) for call in found.session.pending)]


def recorded_reading(settings: ServiceSettings, job: Job) -> dict[str, Any] | None:
    """How the text of a known search was read, where a language model read it."""
    if job.search_id is None:
        return None
    notes = book_of(settings.ledger_url).notes(job.search_id)
    found = next((dict(one.facts) for one in notes if one.kind == "request"), None)
    return None if found is None else plain({name: value for name, value in found.items() if name != "text"})


def planner_of(session: "Session | None", guidance: str, notes: tuple[NoteRecord, ...] = ()) -> Any:
    """A language model as planner; None for the seed search. ``notes`` tell how its request was read."""
    if session is None:
        return None
    from agent.llm.assistant import LlmPlanner
    from agent.llm.text_request import Reading

    flag: Any = next((one.facts.get("flag") for one in notes if one.kind == "request"), None)
    reading = None if not flag else Reading(flag=(str(flag["code"]), str(flag["message"])))
    return LlmPlanner(session, guidance, "", reading)


def worker_planner(recorded: object, guidance: str, notes: tuple[NoteRecord, ...]) -> Any:
    """The planner a recorded search was submitted with, made ready in a worker."""
    if not isinstance(recorded, Mapping) or recorded.get("name") != "llm":
        return None
    from agent.llm.session import open_session

    return planner_of(open_session(), guidance, notes)
