"""JSON and YAML files as people and programs give them: within bounds, and with one line that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from planner.cli.quantities import format_bytes
from planner.errors import InvalidArgument

MAX_FILE_BYTES = 128 << 20
# The parser is slow and takes memory by the token.
MAX_YAML_BYTES = 8 << 20
# With every alias written out: a file of a few lines can stand for more than fits any memory.
MAX_YAML_VALUES = 2_000_000

_YAML = (".yaml", ".yml")
# What yaml calls two of its three kinds of nodes.
_SCALAR, _MAPPING = "scalar", "mapping"


def read_document(path: Path) -> Any:
    """By the file's name JSON or YAML; under another name JSON if it begins like that. Raises InvalidArgument."""
    text = read_text(path)
    if not text.strip():
        raise InvalidArgument(f"{path} is empty")
    if path.suffix in _YAML or (path.suffix != ".json" and not text.lstrip().startswith(("{", "["))):
        return _within(path, "YAML", _yaml, text)
    return _within(path, "JSON", _json, text)


def read_text(path: Path) -> str:
    """UTF-8, with or without a mark at its beginning. Raises InvalidArgument."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidArgument(f"{path} is larger than {format_bytes(MAX_FILE_BYTES)}, the most that is read")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}") from None


def _within(path: Path, language: str, parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except RecursionError:
        raise InvalidArgument(f"{path} is nested too deep to be read; flatten it") from None
    except ValueError as error:
        raise InvalidArgument(f"{path} is no {language}: {_one_line(str(error))}") from None
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error.message}") from None


def _one_line(message: str) -> str:
    return " ".join(message.replace("; use sys.set_int_max_str_digits() to increase the limit", "").split())[:300]


def _json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_mapping)


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        _refuse_twice(key for key, _ in pairs)
    return mapping


def _refuse_twice(keys: Iterable[str]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            raise InvalidArgument(f"the key {key[:80]!r} stands twice in one mapping; keep one")
        seen.add(key)


def _yaml(text: str) -> Any:
    if len(text) > MAX_YAML_BYTES:
        raise InvalidArgument(f"as YAML at most {format_bytes(MAX_YAML_BYTES)} are read; write it as JSON")
    # Here, since a command that reads no YAML would wait for it.
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _num_values(root, {}, set())
        return loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f", line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise ValueError(f"{error.problem or error}{where}") from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    finally:
        loader.dispose()


def _num_values(node: Any, counts: dict[int, int], inside: set[int]) -> int:
    """Values below a node of yaml's, every alias written out. Linear in the file: what is aliased is counted once."""
    if node.id == _SCALAR:
        return 1
    if id(node) in counts:
        return counts[id(node)]
    if id(node) in inside:
        raise InvalidArgument("an alias stands inside of what it names; write it out")
    inside.add(id(node))
    if node.id == _MAPPING:
        _refuse_twice(key.value for key, _ in node.value if key.id == _SCALAR and key.value != "<<")
        below = [child for pair in node.value for child in pair]
    else:
        below = node.value
    count = 1 + sum(_num_values(child, counts, inside) for child in below)
    if count > MAX_YAML_VALUES:
        raise InvalidArgument(f"its aliases stand for more than {MAX_YAML_VALUES:,} values; write less, or as JSON")
    inside.discard(id(node))
    counts[id(node)] = count
    return count


def expect_mapping(path: Path, document: Any, needed: str) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        raise InvalidArgument(f"{path} holds a {type(document).__name__}, needs a mapping with {needed}")
    return document
