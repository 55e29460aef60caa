"""What a service is told: defaults, then a TOML file, then the environment, then the command line.

Every field of :class:`ServiceSettings` is a key of the file and a variable ``INFERASIM_SERVE_<FIELD>``. The file is
``--config``, else ``INFERASIM_SERVE_CONFIG``. ``inferasim serve --print-config`` prints what is in force.
"""

import ipaddress
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ledger.database import locate
from ledger.errors import LedgerError
from predictor.errors import BadFile, BadInput

PREFIX = "INFERASIM_SERVE_"
CONFIG_VARIABLE = f"{PREFIX}CONFIG"
Count = Annotated[int, Field(ge=1, le=10**9)]
Seconds = Annotated[float, Field(gt=0, le=10**6)]


class ServiceSettings(BaseModel):
    """One service process. Limits are per process, but for those of the queue, which all processes share."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080  # 0: any free one, printed at the start
    ledger: str = ""  # file or postgresql:// URL; INFERASIM_LEDGER or the user's own if empty
    anchors: str = ""  # folder of anchors; the user's cache if empty
    auth: Literal["auto", "on", "off"] = "auto"  # auto: off on loopback, on elsewhere
    allowed_hosts: tuple[str, ...] = ()  # names this service is reached by; empty with tokens: any
    secure_cookies: bool = False  # set it where a proxy in front speaks HTTPS
    workers: Annotated[int, Field(ge=0, le=256)] = 2  # search processes; 0 only answers
    quick_workers: Annotated[int, Field(ge=1, le=64)] = 1  # processes for predictions, comparisons, launch commands
    llm: Literal["auto", "off"] = "auto"  # auto: use the language model of the INFERASIM_LLM settings, if there is one
    llm_workers: Annotated[int, Field(ge=1, le=16)] = 1  # processes that read requests with it
    llm_timeout_s: Seconds = 120.0  # of reading one request with it
    nice: Annotated[int, Field(ge=0, le=19)] = 10  # of search processes, so that answers stay quick while they run
    lease_s: Annotated[float, Field(ge=1, le=3600)] = 30.0  # a dead worker's search goes on elsewhere after this
    poll_s: Annotated[float, Field(ge=0.05, le=60)] = 0.5  # how often an idle worker looks into the queue
    max_crashes: Count = 3  # a job that took so many workers down is given up
    max_body_bytes: Count = 1_000_000
    max_upload_bytes: Count = 20_000_000  # of an anchor or a trace
    max_trace_records: Count = 200_000
    max_budget: Count = 5_000  # trials of a search
    max_search_s: Seconds = 3_600.0  # of a search or a sweep
    max_sweep_points: Count = 20_000
    call_timeout_s: Seconds = 30.0  # of a quick question
    running_per_caller: Count = 4
    queued_per_caller: Count = 50
    queued: Count = 500
    reads_per_s: Annotated[float, Field(gt=0, le=10**6)] = 500.0  # of one caller
    writes_per_min: Annotated[float, Field(gt=0, le=10**6)] = 300.0  # of one caller
    streams_per_caller: Count = 100
    database_patience_s: Seconds = 120.0  # how long a search waits for a database that is away or full
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("allowed_hosts", mode="before")
    @classmethod
    def _hosts(cls, value: object) -> object:
        """A variable holds them with commas between."""
        return tuple(filter(None, (part.strip() for part in value.split(",")))) if isinstance(value, str) else value

    @property
    def loopback(self) -> bool:
        """Whether only this machine reaches it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def tokens(self) -> bool:
        """Whether callers need a token."""
        return self.auth == "on" or (self.auth == "auto" and not self.loopback)

    @property
    def anchors_folder(self) -> str | None:
        """The folder of anchors, None for the user's cache."""
        return self.anchors or None

    @property
    def ledger_url(self) -> str:
        """The ledger in force."""
        from agent.tune import default_ledger

        return self.ledger or default_ledger()

    def public(self) -> dict[str, Any]:
        """What is in force, to print: no password."""
        return {
            **self.model_dump(mode="json"),
            "auth": "on" if self.tokens else "off",
            "ledger": shown(self.ledger_url),
        }

    def as_toml(self) -> str:
        """What is in force, as the file would say it."""
        import json

        return "\n".join(f"{name} = {json.dumps(value)}" for name, value in self.public().items()) + "\n"


def shown(url: str) -> str:
    """A ledger's URL without its password."""
    try:
        return locate(url).label
    except LedgerError:
        return "(not a ledger URL)"


def load_settings(
    given: Mapping[str, Any], file: str | None = None, environment: Mapping[str, str] | None = None
) -> ServiceSettings:
    """The settings in force; ``given`` is the command line's. A fault names its source, the field and what is legal."""
    variables = os.environ if environment is None else environment
    named = file or variables.get(CONFIG_VARIABLE) or None
    values: dict[str, Any] = {} if named is None else _read(Path(named))
    sources = dict.fromkeys(values, str(named))
    for name in ServiceSettings.model_fields:
        variable = PREFIX + name.upper()
        if variables.get(variable):
            values[name], sources[name] = variables[variable], variable
        if given.get(name) is not None:
            values[name], sources[name] = given[name], f"--{name.replace('_', '-')}"
    unknown = [name for name in variables if name.startswith(PREFIX) and name != CONFIG_VARIABLE]
    for variable in unknown:
        if variable.removeprefix(PREFIX).lower() not in ServiceSettings.model_fields:
            raise BadInput(f"{variable}: no such setting; legal: {', '.join(ServiceSettings.model_fields)}")
    try:
        found = ServiceSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        value = "" if name == "ledger" else f" {values.get(name)!r}"
        legal = "" if first["type"] != "extra_forbidden" else f"; legal: {', '.join(ServiceSettings.model_fields)}"
        raise BadInput(f"{sources.get(name, 'settings')}: {name}{value}: {first['msg']}{legal}") from None
    if not found.tokens and not found.loopback:
        raise BadInput(
            f"auth 'off' on host {found.host!r}: without tokens only this machine may reach the service; "
            "listen on 127.0.0.1, or make tokens with `inferasim serve token add`"
        )
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise BadInput(f"--config {str(path)!r}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadFile(f"{path}: not readable as TOML: {error}") from None
