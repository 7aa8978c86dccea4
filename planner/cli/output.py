"""Where results and messages go: results alone on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any

from rich.console import Console, RenderableType

# Tables that are piped have no terminal to fit.
PIPED_WIDTH = 180


class OutputFormat(Enum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def emit(result: Any, output: OutputFormat, table: Callable[[], RenderableType]) -> None:
    """Writes a result; `table` draws it for people."""
    if output is OutputFormat.TABLE:
        # Names come from others: none of them is taken for markup.
        width = None if sys.stdout.isatty() else PIPED_WIDTH
        Console(width=width, markup=False, emoji=False, highlight=False).print(table())
    else:
        sys.stdout.write(_document_text(result, output))
    sys.stdout.flush()


def emit_deleted(id_: str, output: OutputFormat) -> None:
    emit({"id": id_, "deleted": True}, output, lambda: f"{id_} deleted")


def _document_text(result: Any, output: OutputFormat) -> str:
    # Here, since most commands write tables and would wait for both.
    import yaml

    from planner.cli.documents import to_document

    if output is OutputFormat.JSON:
        return json.dumps(to_document(result), indent=2, ensure_ascii=False) + "\n"
    return str(yaml.safe_dump(to_document(result), sort_keys=False, allow_unicode=True))


def messages() -> Console:
    """For progress and messages."""
    return Console(stderr=True, markup=False, emoji=False, highlight=False)


def say(message: str) -> None:
    """One line for people: nothing in it is taken for markup, or reaches a terminal as a command."""
    printable = "".join(char if char.isprintable() or char == "\n" else repr(char)[1:-1] for char in message)
    messages().print(printable, soft_wrap=True)
