"""Entry point: assembles the command groups and turns expected errors into one line and an exit code.

Exit codes: 0 done; 1 nothing legal (a result); 2 bad input; 3 a dependency failed. ``--debug`` shows the traceback.
Command modules import what they need inside the command, so that ``--help`` and ``predict`` answer at once.
"""

import os
import sys
from importlib import import_module
from typing import cast

import typer

# The plugin search of the validation library reads the metadata of every installed package; nothing here is a plugin.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# Modules of :mod:`agent.cli` in the order of the help, with the commands each one registers.
MODULES: dict[str, tuple[str, ...]] = {
    "predict": ("predict", "reduce"),
    "tune": ("tune",),
    "launch": ("launch",),
    "simulate": ("simulate",),
    "anchors": ("anchors",),
    "harvest": ("harvest",),
    "verify": ("verify",),
    "ledger": ("ledger",),
    "catalogue": ("levers", "objectives", "models", "platforms", "engines"),
    "explain": ("explain",),
    "pareto": ("pareto",),
    "report": ("report",),
    "mix": ("mix",),
    "doctor": ("doctor",),
    "serve": ("serve",),
}


def assemble(command: str | None = None) -> typer.Typer:
    """The application: with all commands, or with the module of one command alone, which starts much faster."""
    app = typer.Typer(
        name="inferasim",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()  # keeps the command's name on the command line where only one is registered
    def about() -> None:
        """Predict and tune LLM serving deployments on a CPU, from one short measurement a kernel set."""

    wanted = [module for module, commands in MODULES.items() if command in commands] or list(MODULES)
    for module in wanted:
        import_module(f"agent.cli.{module}").register(app)
    return app


# The common base of all complaints about the command line.
UsageError = cast(type[Exception], typer.BadParameter.__mro__[1])
EXIT_BAD_INPUT = 2
EXIT_DEPENDENCY = 3
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; always leaves by SystemExit."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        code = assemble(given[0] if given else None)(args=given, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", EXIT_INTERRUPTED)
    except UsageError as error:
        from agent.cli.usage import complaint

        _fail(complaint(error, given), EXIT_BAD_INPUT)
    except Exception as error:
        if debug:
            raise
        _fail(*_explain(error))
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Exception) -> tuple[str, int]:
    """The line and exit code of an expected error; a bug is named as one."""
    from agent.failures import DependencyFailed
    from ledger.errors import LedgerError
    from predictor.errors import InferaSimError

    if isinstance(error, LedgerError):
        return str(error), EXIT_BAD_INPUT
    if isinstance(error, DependencyFailed):
        return str(error), EXIT_DEPENDENCY
    if isinstance(error, InferaSimError):
        return str(error), EXIT_BAD_INPUT
    return f"internal error ({type(error).__name__}: {error}); run again with --debug and report it", EXIT_DEPENDENCY


def _fail(message: str, code: int) -> None:
    print(" ".join(message.split()), file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
