"""planner-cli: runs a command and turns what went wrong into a short message and an exit status."""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Sequence
from typing import NoReturn, TextIO

from planner.cli import exit_codes
from planner.cli.app import app
from planner.cli.output import say
from planner.errors import PlannerError, PlannerWarning

# Allocations between two garbage collections; Python's own 700 make them a fifth of the time that imports take.
ALLOCATIONS_BETWEEN_COLLECTIONS = 100_000


_show_as_python_does = warnings.showwarning


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, PlannerWarning):
        say(f"warning: {message}")
    else:
        _show_as_python_does(message, category, filename, lineno, file, line)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Ends with SystemExit, always; `arguments` are the command line's if None."""
    if arguments is None:
        gc.set_threshold(ALLOCATIONS_BETWEEN_COLLECTIONS)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app(args=arguments, prog_name="planner-cli")
    except PlannerError as error:
        say(f"error: {error.message}")
        sys.exit(exit_codes.exit_code_of(error))
    except KeyboardInterrupt:
        sys.exit(exit_codes.INTERRUPTED)
    except MemoryError:
        say("error: this machine's memory does not suffice; give a smaller graph, or run it where there is more")
        sys.exit(exit_codes.UNEXPECTED)
    except Exception as error:
        if os.environ.get("PLANNER_DEBUG"):
            raise
        say(f"unexpected {type(error).__name__}: {error} (PLANNER_DEBUG=1 shows where)")
        sys.exit(exit_codes.UNEXPECTED)
    finally:
        if arguments is None:
            # The process ends: to look through all of torch for garbage first takes 0.15 s.
            gc.freeze()
    sys.exit(exit_codes.OK)


if __name__ == "__main__":
    main()
