"""The small certificate authority: what it refuses. That its certificates work, every other test here shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from access.authority import create_authority, issue
from access.errors import AccessError
from tests.access.certificates import DAY, Certificates


def test_a_folder_with_an_authority_keeps_it(certificates: Certificates) -> None:
    key = (certificates.folder / "ca.key").read_bytes()
    with pytest.raises(AccessError, match="take another folder"):
        create_authority(certificates.folder, DAY)
    assert (certificates.folder / "ca.key").read_bytes() == key


def test_a_folder_without_one_is_told_how_to_make_it(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="make one with `planner-cli certs init`"):
        issue(tmp_path, tmp_path, role="client", name="me", valid=DAY)


@pytest.mark.parametrize(("role", "name"), [("root", "me"), ("client", "../me"), ("client", ""), ("client", ".me")])
def test_unknown_roles_and_names_that_are_paths_are_refused(certificates: Certificates, role: str, name: str) -> None:
    with pytest.raises(AccessError, match=r"is not known|cannot be a file's"):
        issue(certificates.folder, certificates.folder, role=role, name=name, valid=DAY)


def test_a_damaged_authority_is_said_to_be(certificates: Certificates) -> None:
    (certificates.folder / "ca.key").write_text("nothing")
    with pytest.raises(AccessError, match="cannot be read"):
        certificates.issue("client")
