"""--mode and the flags of every mode's options, made from `planner.partition.modes.table`, and the Mode they mean."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import wraps
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from planner.cli.document_file import expect_mapping, read_document
from planner.errors import OptionsError
from planner.graph.bounds import shown_value
from planner.partition.modes.table import MODES, AotBasedMode, Mode, OptimalMode, Option, options_of

if TYPE_CHECKING:
    ModeName = Enum
else:
    ModeName = Enum("ModeName", {name.upper(): name for name in MODES})

ModeOption = Annotated[
    ModeName | None,
    typer.Option("--mode", help="How to choose the cuts; else the mode whose flag is given, else `optimal`."),
]
_ASSIGNMENT = typer.Option(
    "--assignment",
    metavar="FILE",
    help='aot_based: JSON with "partition_of_node", a number for each node, and "device_of_partition", device ids.',
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flag:
    """`takers`: the modes that take it, and the option that it is of each."""

    name: str
    takers: Mapping[str, Option]

    @property
    def key(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def usual(self) -> Any:
        option = next(iter(self.takers.values()))
        return None if option.is_required or option.is_list else option.default

    def parameter(self) -> inspect.Parameter:
        option = next(iter(self.takers.values()))
        is_number = option.type is int
        declared = typer.Option(
            self.name,
            metavar=option.input.metavar,
            help=f"{', '.join(self.takers)}: {option.input.help}",
            min=0 if is_number else None,
            max=option.input.most if is_number else None,
        )
        kind: Any = GenericAlias(list, get_args(option.type)[0]) if option.is_list else option.type
        return _parameter(self.key, Annotated[kind | None if self.usual is None else kind, declared], self.usual)


def takes_mode(command: Callable[..., None]) -> Callable[..., None]:
    """The command with --mode and every mode's flags in the place of its parameter `mode`, which is given a Mode."""
    flags = _flags()
    own = [_parameter("mode", ModeOption, None), *(flag.parameter() for flag in flags)]
    own.append(_parameter("assignment", Annotated[Path | None, _ASSIGNMENT], None))
    signature = inspect.signature(command, eval_str=True)
    parameters = [
        one for parameter in signature.parameters.values() for one in (own if parameter.name == "mode" else [parameter])
    ]

    @wraps(command)
    def with_flags(**values: Any) -> None:
        values_of_flags = {parameter.name: values.pop(parameter.name) for parameter in own}
        name = values_of_flags.pop("mode")
        command(mode=mode_from_flags(name and name.value, values_of_flags), **values)

    with_flags.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_flags


def mode_from_flags(name: str | None, values: Mapping[str, Any]) -> Mode:
    """`values` by the flags' names without dashes: those of all modes, or none. Raises OptionsError.

    Without a name the first flag that is given and that `optimal` does not take names the mode.
    """
    flags = [flag for flag in _flags() if values.get(flag.key, flag.usual) != flag.usual]
    takers = {flag.name: tuple(flag.takers) for flag in flags}
    path: Path | None = values.get("assignment")
    if path is not None:
        takers["--assignment"] = (AotBasedMode.name,)
    usual = next((modes[0] for modes in takers.values() if OptimalMode.name not in modes), OptimalMode.name)
    mode_name = name or usual
    for flag, modes in takers.items():
        if mode_name not in modes:
            raise OptionsError(f"{flag} with --mode {mode_name}: only --mode {' or '.join(modes)} takes it")
    if mode_name == AotBasedMode.name:
        return read_assignment(path)
    return _mode(mode_name, {flag.takers[mode_name].name: values[flag.key] for flag in flags})


def _mode(name: str, values: Mapping[str, Any]) -> Mode:
    """A list that is not given is empty; whether it may be is for the mode to say."""
    options = {option.name: () for option in options_of(MODES[name]) if option.is_required and option.is_list}
    for option in options_of(MODES[name]):
        if option.is_required and not option.is_list and option.name not in values:
            raise OptionsError(f"--mode {name} needs {option.input.flag}: {option.input.help}")
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return MODES[name](**{**options, **lists})


def _flags() -> list[_Flag]:
    """In the order of the modes."""
    takers: dict[str, dict[str, Option]] = {}
    for name, mode in MODES.items():
        for option in options_of(mode):
            if option.input.flag:
                takers.setdefault(option.input.flag, {})[name] = option
    return [_Flag(name=flag, takers=modes) for flag, modes in takers.items()]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default)


def read_assignment(path: Path | None) -> AotBasedMode:
    """Raises InvalidArgument that names the file and what is wrong in it."""
    if path is None:
        raise OptionsError("--mode aot_based needs --assignment FILE: each node's partition, each partition's device")
    document = expect_mapping(path, read_document(path), "partition_of_node and device_of_partition")
    missing = [key for key in ("partition_of_node", "device_of_partition") if key not in document]
    if missing:
        raise OptionsError(f"{path} has no {missing[0]}; it needs partition_of_node and device_of_partition")
    partitions, devices = document["partition_of_node"], document["device_of_partition"]
    if not _all(partitions, int) or any(partition < 0 for partition in partitions):
        raise OptionsError(f"{path}: partition_of_node needs a list of whole numbers from 0, one for each node")
    if not _all(devices, str):
        raise OptionsError(f"{path}: device_of_partition needs a list of device ids")
    beyond = next((partition for partition in partitions if partition >= len(devices)), None)
    if beyond is not None:
        raise OptionsError(f"{path}: partition {shown_value(beyond)} has no device; there are {len(devices)}")
    return AotBasedMode(partition_of_node=tuple(partitions), device_of_partition=tuple(devices))


def _all(content: object, kind: type) -> bool:
    return isinstance(content, list) and all(isinstance(item, kind) and not isinstance(item, bool) for item in content)
