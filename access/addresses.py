"""Addresses: where a server listens, as host:port, and where a client looks for one, as gRPC takes it."""

from __future__ import annotations

from dataclasses import dataclass

from access.errors import WrongAddress

MOST_PORT = 65535
# gRPC's own schemes of names: "dns:///planner:50051", "unix:/run/planner".
_BY_NAME = "dns:///"
_IN_A_FOLDER = "unix:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """`host` without the brackets that an IPv6 address has in text; empty for all addresses of this machine."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_endpoint(text: str, default_port: int | None = None) -> Endpoint:
    """Where no default is given, a port has to be. Raises WrongAddress."""
    host, separator, port = text.rpartition(":")
    if default_port is not None and (not separator or text.endswith("]")):
        host, port = text, str(default_port)
    bare = host.removeprefix("[").removesuffix("]")
    has_brackets = host == f"[{bare}]"
    is_host = has_brackets == (":" in bare) and not any(letter.isspace() or letter in "/@[]" for letter in bare)
    is_port = port.isascii() and port.isdecimal() and len(port) <= len(str(MOST_PORT)) and int(port) <= MOST_PORT
    if not (is_host and is_port):
        raise WrongAddress(
            f"address {text[:80]!r}: needs host:port, as 127.0.0.1:50051 or [::1]:50051, with a port up to {MOST_PORT}"
        )
    return Endpoint(host=bare, port=int(port))


def check_targets(text: str) -> None:
    """Of one server, or of several joined by commas, to connect to. Raises WrongAddress."""
    for target in text.split(","):
        if target.startswith(_IN_A_FOLDER) and target != _IN_A_FOLDER:
            continue
        endpoint = parse_endpoint(target.removeprefix(_BY_NAME))
        if not (endpoint.host and endpoint.port):
            raise WrongAddress(f"address {target[:80]!r}: names no {'port' if endpoint.host else 'host'} to connect to")
