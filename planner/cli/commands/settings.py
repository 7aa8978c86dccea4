"""`config`: every setting that the environment can give, and what holds now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from rich.table import Table

from planner.cli.options import OutputOption, ServerOption
from planner.cli.output import OutputFormat, emit
from planner.cli.tables import plain_table
from planner.client.config import config_path, find_server
from planner.errors import InvalidArgument
from planner.redaction import without_secrets
from planner.settings import Settings

_PREFIX = "PLANNER_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`read_by` is planner-cli or planner-server; an empty value means that the default is found out at run time."""

    name: str
    value: str
    default: str
    is_given: bool
    read_by: str
    meaning: str


def config(server: ServerOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """List the PLANNER_* settings: what holds, where it differs from the default, what it means."""
    settings = [*_of_the_cli(server), *_of_the_server()]
    emit(settings, output, lambda: _table(settings))


def _of_the_cli(server: str | None) -> Iterator[Setting]:
    settings: tuple[tuple[str, str, str, str], ...] = (
        ("SERVER", find_server(server), "127.0.0.1:50051", "host:port of the planner-server; --server comes first"),
        ("CONFIG", str(config_path()), "~/.config/partition-planner/config.yaml", "file that names the server"),
        ("DEBUG", os.environ.get("PLANNER_DEBUG", ""), "", "any text: an unexpected error shows where it happened"),
    )
    for name, value, default, meaning in settings:
        yield Setting(
            name=_PREFIX + name,
            value=value,
            default=default,
            is_given=_PREFIX + name in os.environ,
            read_by="planner-cli",
            meaning=meaning,
        )


def _of_the_server() -> Iterator[Setting]:
    """As a planner-server that is started here without options would read them."""
    try:
        settings = Settings()  # type: ignore[call-arg]
    except ValidationError as error:
        problem = error.errors()[0]
        name = _PREFIX + ".".join(map(str, problem["loc"])).upper()
        raise InvalidArgument(f"{name}: {problem['msg'].removeprefix('Value error, ')}") from None
    for field, described in Settings.model_fields.items():
        yield Setting(
            name=_PREFIX + field.upper(),
            value=_shown(getattr(settings, field)),
            default=_shown(described.default),
            is_given=field in settings.model_fields_set,
            read_by="planner-server",
            meaning=described.description or "",
        )


def _shown(value: Any) -> str:
    return without_secrets(str(value))


def _table(settings: list[Setting]) -> Table:
    table = plain_table("setting", "value", "", "meaning")
    for setting in settings:
        table.add_row(setting.name, setting.value or "-", "given" if setting.is_given else "", setting.meaning)
    return table
