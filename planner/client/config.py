"""Which server to talk to, where none is named: that of PLANNER_SERVER, of the config file, the one that `up` started
here, or the default port; and what it takes to be let in. Of the command line and of Python programs alike."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from access.errors import AccessError
from access.files import TlsFiles, tls_files
from planner.errors import InvalidArgument

DEFAULT_SERVER = "127.0.0.1:50051"
_TLS_KEYS = ("tls_certificate", "tls_key", "tls_ca")
_KEYS = frozenset({"server", "token_file", *_TLS_KEYS})


def config_path() -> Path:
    named = os.environ.get("PLANNER_CONFIG")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "partition-planner" / "config.yaml"


def local_server_path() -> Path:
    """Where `up` writes what it started, beside the config file."""
    return config_path().with_name("local-server.yaml")


def find_server(named: str | None) -> str:
    """`named` is the --server option."""
    return named or _of_environment() or _configured() or _started_here() or DEFAULT_SERVER


def is_server_named(named: str | None) -> bool:
    """Whether somebody runs one where it is looked for, as far as the user says: it may be away for a moment."""
    return bool(named or _of_environment() or _configured())


def find_tls() -> TlsFiles | None:
    """By PLANNER_TLS_CERTIFICATE, PLANNER_TLS_KEY and PLANNER_TLS_CA, or the keys of the config file called so."""
    try:
        return tls_files(*map(_file, _TLS_KEYS))
    except AccessError as error:
        raise InvalidArgument(error.message) from None


def find_token_file() -> Path | None:
    """By PLANNER_TOKEN_FILE, or token_file in the config file."""
    return _file("token_file")


def find_restart_seconds() -> float:
    """By PLANNER_RESTART_SECONDS: for how long a planner that does not answer is asked again."""
    from planner.client.failover import DEFAULT_RESTART_SECONDS

    text = os.environ.get("PLANNER_RESTART_SECONDS", "")
    try:
        seconds = float(text) if text else DEFAULT_RESTART_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < math.inf:
        raise InvalidArgument(f"PLANNER_RESTART_SECONDS is {text!r}, needs a number of seconds from 0")
    return seconds


def _file(key: str) -> Path | None:
    """By the environment, relative to here; or by the config file, relative to that."""
    named = os.environ.get(f"PLANNER_{key.upper()}")
    if named:
        return Path(named).expanduser()
    configured = _document().get(key)
    return config_path().parent / Path(str(configured)).expanduser() if configured else None


@contextmanager
def announced(address: str) -> Iterator[None]:
    """While it lasts, other commands find the server at `address`."""
    import yaml

    path = local_server_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(yaml.safe_dump({"server": address, "process_id": os.getpid()}))
    partial.replace(path)
    try:
        yield
    finally:
        if _read(path).get("process_id") == os.getpid():
            path.unlink(missing_ok=True)


def _of_environment() -> str:
    return os.environ.get("PLANNER_SERVER", "")


def _configured() -> str | None:
    server = _document().get("server")
    if server is not None and not isinstance(server, str):
        raise InvalidArgument(f"{config_path()}: server is {server!r}, needs host:port")
    return server


def _document() -> dict[str, Any]:
    path = config_path()
    document = _read(path)
    unknown = sorted(set(document) - _KEYS)
    if unknown:
        raise InvalidArgument(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(sorted(_KEYS))}")
    return document


def _started_here() -> str | None:
    document = _read(local_server_path())
    server, process_id = document.get("server"), document.get("process_id")
    if not isinstance(server, str) or not isinstance(process_id, int):
        return None
    return server if _is_running(process_id) else None


def _is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    # Here, since a command without a config file would wait for it.
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{path} is no YAML: {error}") from None
    if document is not None and not isinstance(document, dict):
        raise InvalidArgument(f"{path} holds a {type(document).__name__}, needs a mapping such as `server: host:port`")
    return document or {}
