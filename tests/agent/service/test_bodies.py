"""The typed bodies say what the command line's requests say."""

from dataclasses import fields
from typing import get_args, get_type_hints

from agent.predict_request import PredictRequest
from agent.request import TuningRequest
from agent.service.bodies import LIMITS, PredictBody, TuneBody


def test_a_prediction_has_the_fields_of_the_command() -> None:
    assert set(PredictBody.model_fields) - {"mode", "method"} == {one.name for one in fields(PredictRequest)}
    defaults = {one.name: one.default for one in fields(PredictRequest)}
    for name, field in PredictBody.model_fields.items():
        if name in defaults and not field.is_required():
            assert field.default == defaults[name], name


def test_every_number_and_text_of_a_prediction_is_bounded() -> None:
    """A field that is added to the command is refused here until someone has said how far it may go."""
    kinds = get_type_hints(PredictRequest)
    free = {name for name, kind in kinds.items() if name not in LIMITS and {str, int, float} & {kind, *get_args(kind)}}
    assert free == set()
    assert set(LIMITS) <= set(kinds)


def test_a_search_has_the_fields_of_the_command() -> None:
    assert set(TuneBody.model_fields) - {"text", "accept", "planner"} == set(TuningRequest.model_fields)
