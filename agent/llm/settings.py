"""Which language model to use and within which limits: defaults, then a TOML file, then the environment.

Every field of :class:`LlmSettings` is a key of the file and a variable ``INFERASIM_LLM_<FIELD>``. The file is
``INFERASIM_LLM_CONFIG``, else ``llm.toml`` in the user's configuration folder. Keys of providers may come from their
own variables (``OPENAI_API_KEY`` …), which LiteLLM reads.
"""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from predictor.errors import BadFile, BadInput

PREFIX = "INFERASIM_LLM_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
Count = Annotated[int, Field(ge=1, le=10**9)]
Positive = Annotated[float, Field(gt=0, le=10**9)]
NotNegative = Annotated[float, Field(ge=0, le=10**9)]


class LlmSettings(BaseModel):
    """One chat model through LiteLLM, and the limits of one search. No model: the search goes without one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str = ""  # as LiteLLM names it: provider/model
    api_base: str | None = None
    api_key: SecretStr | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Count = 4096  # of one answer
    context_tokens: Count | None = None  # of the model; LiteLLM's figure if left out, else DEFAULT_CONTEXT_TOKENS
    response_schema: Literal["auto", "on", "off"] = "auto"  # send a JSON schema with each request
    timeout_s: Positive = 120.0  # of one attempt
    attempts: Annotated[int, Field(ge=1, le=20)] = 4  # of one call, the first included
    retry_wait_s: NotNegative = 1.0  # before the second attempt; doubles
    max_calls: Count = 500
    max_total_tokens: Count = 3_000_000
    max_cost_usd: NotNegative = 5.0
    max_wall_s: Positive = 1800.0
    usd_per_m_input: NotNegative | None = None  # dollars a million tokens, where LiteLLM does not know the price
    usd_per_m_output: NotNegative | None = None
    program: str | None = None  # a saved DSPy program to use instead of the plain prompts

    @field_validator("model")
    @classmethod
    def _model_has_a_provider(cls, model: str) -> str:
        """LiteLLM finds the provider by the part before the slash; without one it guesses from a list."""
        if model and not all(model.partition("/")):
            raise ValueError("write it as LiteLLM does, provider/model, such as openai/NAME or anthropic/NAME")
        return model

    @property
    def configured(self) -> bool:
        """Whether there is a model to ask."""
        return bool(self.model)


DEFAULT_CONTEXT_TOKENS = 32_768  # what current chat models take at least
HOW_TO_CONFIGURE = (
    f"set {PREFIX}MODEL to provider/model and, for a server of your own, {PREFIX}API_BASE; `inferasim doctor` checks it"
)


def config_file(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The settings file, if there is one. A file that was named must exist."""
    named = environment.get(CONFIG_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise BadInput(f"{CONFIG_VARIABLE} {named!r}: no such file")
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "~")).expanduser() / ".config")
    path = Path(base) / "inferasim" / "llm.toml"
    return path if path.is_file() else None


def load_settings(environment: Mapping[str, str] | None = None) -> LlmSettings:
    """The settings in force. A fault names the variable or the file's key, and never shows a secret."""
    variables = os.environ if environment is None else environment
    path = config_file(variables)
    values: dict[str, Any] = {} if path is None else _read(path)
    sources = dict.fromkeys(values, str(path))
    for name in LlmSettings.model_fields:
        variable = PREFIX + name.upper()
        if variables.get(variable):
            values[name], sources[name] = variables[variable], variable
    try:
        return LlmSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        shown = "" if name == "api_key" else f" {values.get(name)!r}"
        legal = "" if first["type"] != "extra_forbidden" else f"; legal: {', '.join(LlmSettings.model_fields)}"
        raise BadInput(f"{sources.get(name, 'LLM settings')}: {name}{shown}: {first['msg']}{legal}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not readable as TOML: {error}") from None
