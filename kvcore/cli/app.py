"""The application: its commands in the order a newcomer meets them, and its exit codes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer

import kvcore
from kvcore.cli import (
    backends,
    bench,
    check,
    dump,
    emit,
    explain,
    formats,
    generate,
    plan,
    report,
    walk,
)
from kvcore.cli import eval as evaluate
from kvcore.errors import BuildError, FormatError, KvcoreError, ShapeError

# typer carries its own copy of click in some versions; these are the same classes in both.
_USAGE: Any = typer.BadParameter.__mro__[1]
_CLICK: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="kvcore",
    help="Store an LLM's KV cache in 2 to 8 bits and attend over it, on any hardware.",
    epilog="Example: kvcore generate 'The sea is' --format q2k",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(kvcore.__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help())


for _module in (generate, backends, formats, plan, walk, explain, emit, check, bench, dump, report):
    app.command(name=_module.NAME, epilog=f"Example: {_module.EXAMPLE}")(_module.run)
app.add_typer(evaluate.app, name=evaluate.NAME)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Those of the process by default.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a console without arrows still gets its table
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
    """
    command = typer.main.get_command(app)
    given = None if arguments is None else list(arguments)
    try:
        code = command.main(args=given, prog_name="kvcore", standalone_mode=False)
        sys.stdout.flush()
    except _USAGE as error:
        what = error.format_message() or "a subcommand is missing"
        return _fail(f"{what} (see {_help_of(error)})", 2)
    except _CLICK as error:
        return _fail(error.format_message(), 1)
    except (typer.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader has gone, as in `kvcore formats | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KvcoreError as error:
        return _fail(_one_line(error), exit_code(error))
    return code if isinstance(code, int) else 0


def exit_code(error: KvcoreError) -> int:
    """Return 2 for what the caller can mend in the call, 1 for what is so on this machine."""
    from kvcore.lab.errors import SettingError, UnknownModelError

    wrong_call = (FormatError, ShapeError, SettingError, UnknownModelError)
    return 2 if isinstance(error, wrong_call) else 1


def _help_of(error: Any) -> str:
    path = error.ctx.command_path if getattr(error, "ctx", None) is not None else "kvcore"
    return f"{path} --help"


def _one_line(error: KvcoreError) -> str:
    if isinstance(error, BuildError):
        return str(error)  # the compiler's log keeps its lines
    lines = [line.strip().removeprefix("- ") for line in str(error).splitlines()]
    return "; ".join(line for line in lines if line).replace(":; ", ": ")


def _fail(text: str, code: int) -> int:
    print(f"kvcore: {text}", file=sys.stderr)
    return code
