"""The typed bodies say what the command line's requests say."""

from dataclasses import fields

from agent.predict_request import PredictRequest
from agent.request import TuningRequest
from agent.service.bodies import PredictBody, TuneBody


def test_a_prediction_has_the_fields_of_the_command() -> None:
    assert set(PredictBody.model_fields) - {"mode", "method"} == {one.name for one in fields(PredictRequest)}
    defaults = {one.name: one.default for one in fields(PredictRequest)}
    for name, field in PredictBody.model_fields.items():
        if name in defaults and not field.is_required():
            assert field.default == defaults[name], name


def test_a_search_has_the_fields_of_the_command() -> None:
    assert set(TuneBody.model_fields) - {"text", "accept"} == set(TuningRequest.model_fields) - {"guidance"}
