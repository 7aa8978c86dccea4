"""How large a graph may be that comes from the network. The daemon trusts no one to have checked it before."""

from __future__ import annotations

from stage_daemon.errors import InvalidGraph

MAX_GRAPH_BYTES = 64 * 2**20
MAX_NODES = 250_000
MAX_VALUES = 2_000_000
MAX_STATES = 250_000
MAX_SYMBOLS = 100_000
MAX_INPUTS = 100_000
MAX_SUBGRAPHS = 10_000
MAX_SUBGRAPH_DEPTH = 16
MAX_ARGUMENT_DEPTH = 16
MAX_ARGUMENT_ITEMS = 100_000
MAX_EXPRESSION_DEPTH = 64
MAX_EXPRESSION_BITS = 4096
MAX_EXPONENT = 64
MAX_RANK = 64
MAX_DIM = 2**40
MAX_TENSOR_BYTES = 2**50
MAX_NAME_LENGTH = 4096

# State names are keys and labels, never code; one that holds these comes from no honest exporter.
_REFUSED_CHARACTERS = frozenset("()'\"`\\;=$")


def check_count(where: str, what: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidGraph(f"{where}: {count} {what}, at most {most} are allowed", found=count, limit=most)


def check_state_name(name: str) -> None:
    if not name or len(name) > MAX_NAME_LENGTH or not name.isprintable() or _REFUSED_CHARACTERS.intersection(name):
        raise InvalidGraph(
            f"state {shown(name)}: not a name that a weight may have; use letters, digits and . _ - / : @ and the like"
        )


def shown(text: str) -> str:
    """The text as an error message may carry it."""
    return repr(text if len(text) <= 80 else text[:77] + "...")
