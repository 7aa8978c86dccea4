"""Files that cannot be read: one line that says why, the right status, and never more memory than the file deserves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli import exit_codes
from planner.cli.document_file import MAX_FILE_BYTES, read_document
from planner.errors import InvalidArgument
from tests.planner.cli.conftest import RunCli

LINES = [
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
]
BOMB = "\n".join(["a: &a [x, x, x, x, x, x, x, x, x]", *LINES, "devices: *i", "nodes: *i"])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", b"", "is empty"),
        ("a.json", b" \n", "is empty"),
        ("a.json", b'{"nodes": [', "is no JSON: Expecting value"),
        ("a.json", b'{"nodes": "\xe9"}', "is not UTF-8 text: byte 11 is 0xe9"),
        ("a.json", "{}".encode("utf-16"), "is not UTF-8 text"),
        ("a.json", b'{"a": 1, "a": 2}', "the key 'a' stands twice"),
        ("a.json", b"[" * 200_000, "is nested too deep"),
        ("a.json", b'{"a": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
        ("a.yaml", b"[" * 600, "is nested too deep"),
        ("a.yaml", b"nodes: []\nnodes: [1]\n", "the key 'nodes' stands twice"),
        ("a.yaml", b"&a [*a]", "an alias stands inside of what it names"),
        ("a.yaml", b"\tnodes: []", "cannot start any token, line 1 column 1"),
        ("a.yaml", b"!!python/object/apply:os.system ['echo']", "could not determine a constructor"),
        ("a.yaml", BOMB.encode(), "aliases stand for more than"),
        ("a.yaml", b"a: 0\n" * 2_000_000, "as YAML at most 8 MiB are read"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidArgument) as caught:
        read_document(path)
    assert says in caught.value.message
    assert caught.value.message.startswith(str(path))
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


def test_a_mark_at_the_beginning_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "marked.json"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_document(path) == {"a": 1}


def test_yaml_may_name_a_part_and_use_it_again(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.write_text("fast: &fast {rate: 1}\nlinks: [*fast, *fast]\n")
    assert read_document(path)["links"] == [{"rate": 1}] * 2


def test_no_more_than_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidArgument, match="larger than 128 MiB"):
        read_document(path)


@pytest.mark.parametrize(
    "arguments", [("inventory", "create"), ("solve",), ("plan", "create", "--graph", "g", "--assignment")]
)
@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"[[[", b"3", b"null", BOMB.encode()])
def test_every_command_that_reads_a_file(
    bare_cli: RunCli, tmp_path: Path, arguments: tuple[str, ...], content: bytes
) -> None:
    path = tmp_path / "given.yaml"
    path.write_bytes(content)
    finished = bare_cli(*arguments, path)
    assert finished.status == exit_codes.INVALID_INPUT
    assert "given.yaml" in finished.stderr
    assert finished.stderr.startswith("error: ")
    assert len(finished.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        ([{"id": "a", "memory": -1}], "devices[0]: device 'a': memory_bytes is -1, needs more than 0"),
        ([{"id": "a", "memory": 10**400}], "memory_bytes is more than 2^63 - 1"),
        ([{"id": "a", "memory": True}], "devices[0].memory is True, needs whole bytes"),
        ([{"id": "a", "memory": "9" * 5000}], "is no size"),
        ([{"id": "a", "memory": 1, "memory_bytes": 1}], "give one of them"),
        ([{"id": None, "memory": 1}], "devices[0].id is None, needs a text"),
        ([{"id": "\x1b[31m", "memory": 1}], "printable"),
        ([{"id": "a", "memory": 1, "flops_per_second": float("nan")}], "flops_per_second is nan"),
        ([{"id": "a", "memory": 1, "flops_per_second": 1e300}], "flops_per_second is 1e+300"),
        ([{"id": "a", "memory": 1, "flops_per_second": 10**400}], "devices[0].flops_per_second is 1000"),
        ([{"id": f"d{index}", "memory": 1} for index in range(5000)], "5,000 devices; at most 4,096 are read"),
        ([{"id": "a", "memory": 1}, {"id": "b", "memory": 1}, {"id": "a", "memory": 1}], "share an id, 'a'"),
        ([[["x"] * 10_000] * 100], "devices[0] is [["),
    ],
)
def test_devices_that_cannot_be_are_named(bare_cli: RunCli, tmp_path: Path, devices: object, says: str) -> None:
    path = tmp_path / "inventory.json"
    path.write_text(json.dumps({"devices": devices}))
    finished = bare_cli("inventory", "create", path)
    assert finished.status == exit_codes.INVALID_INPUT
    assert says in finished.stderr
    assert len(finished.stderr) < 600


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"default_link": {"bytes_per_second": 0}}, "default_link: bytes_per_second is 0.0"),
        ({"default_link": {"latency_seconds": float("inf")}}, "default_link: latency_seconds is inf"),
        ({"default_link": {"latency_seconds": 1e12}}, "default_link: latency_seconds is 1e+12"),
        ({"default_link": {"bytes_per_second": True}}, "default_link.bytes_per_second is True, needs a number"),
        ({"links": [{"source": "a", "target": "b"}] * 2}, "links[1]: 'a' to 'b' has a link already"),
        ({"links": [{"source": "a", "target": "z"}]}, "no device is called 'z'"),
        ({"links": [{"source": "a", "target": "b", "bidirectional": "no"}]}, "needs true or false"),
        ({"matrix": {"bytes_per_second": [[0, 1]]}}, "needs 2 by 2"),
        ({"matrix": {"bytes_per_second": [[0, float("nan")], [1, 0]]}}, "'a' to 'b': bytes_per_second is nan"),
    ],
)
def test_links_that_cannot_be_are_named(bare_cli: RunCli, tmp_path: Path, more: dict[str, object], says: str) -> None:
    path = tmp_path / "inventory.json"
    path.write_text(json.dumps({"devices": [{"id": "a", "memory": 1}, {"id": "b", "memory": 1}], **more}))
    finished = bare_cli("inventory", "create", path)
    assert finished.status == exit_codes.INVALID_INPUT
    assert says in finished.stderr
