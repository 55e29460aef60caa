"""Run a service process: one event loop for HTTP, its worker processes beside it."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator

import uvicorn

from agent.service.app import create_app
from agent.service.logs import log, set_up
from agent.service.settings import ServiceSettings
from ledger.database import locate
from ledger.errors import LedgerError

SWITCH_S = 0.001  # a thread that reads trials hands the interpreter back this soon, so that answers do not wait for it
GRACE_S = 10  # for answers under way when the service stops


def run(settings: ServiceSettings, ready: Callable[[str], None]) -> None:
    """Serve until a signal; ``ready`` is told the address once it listens."""
    sys.setswitchinterval(SWITCH_S)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _asked_to_stop)  # the server sends itself each again once it has stopped in order
    with only_one(settings), listening(settings) as listener:
        set_up(settings.log_level)
        host, port = listener.getsockname()[:2]
        log().info("settings", **settings.public())
        config = uvicorn.Config(
            create_app(settings),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
            timeout_keep_alive=30,
            h11_max_incomplete_event_size=65_536,
        )
        server = Server(config, lambda: ready(f"http://{'[' + host + ']' if ':' in host else host}:{port}/"))
        asyncio.run(server.serve(sockets=[listener]))


def _asked_to_stop(_number: int, _frame: object) -> None:
    """A signal after which there is nothing left to do."""


class Server(uvicorn.Server):
    """Says when it listens, and tells streams to end as soon as it is told to stop."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets=sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then everything else."""
        app = self.config.app
        state = getattr(getattr(app, "state", None), "service", None)
        if state is not None:
            state.stopping = True
        await super().shutdown(sockets=sockets)


@contextlib.contextmanager
def listening(settings: ServiceSettings) -> Iterator[socket.socket]:
    """The socket, bound before anything is started; a port that is taken is one line."""
    from predictor.errors import BadInput

    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise BadInput(f"host {settings.host!r} port {settings.port}: cannot listen ({error.strerror})") from None
        yield listener
    finally:
        listener.close()


@contextlib.contextmanager
def only_one(settings: ServiceSettings) -> Iterator[None]:
    """Hold a SQLite ledger for this process alone: several processes share PostgreSQL."""
    location = locate(settings.ledger_url)
    if not location.is_sqlite:
        yield
        return
    if location.path is None:
        raise LedgerError("ledger :memory:: a service needs one that its workers can open; give a file or a URL")
    try:
        import fcntl
    except ModuleNotFoundError:  # no such lock on this system; the queue's leases still keep searches apart
        yield
        return
    path = location.path.with_name(location.path.name + ".serve-lock")
    try:
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise LedgerError(f"ledger {location.label}: its folder cannot be written ({error.strerror})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LedgerError(
                f"ledger {location.label}: another service serves it; SQLite serves one, use PostgreSQL for several"
            ) from None
        yield
    finally:
        os.close(handle)
