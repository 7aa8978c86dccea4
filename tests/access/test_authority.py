"""The small certificate authority: what it refuses. That its certificates work, every other test here shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.x509 import load_pem_x509_crl

from access.authority import create_authority, issue, revoke
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


def test_what_was_revoked_stays_revoked(certificates: Certificates) -> None:
    first, second = certificates.issue("client", name="one"), certificates.issue("client", name="two")
    assert len(load_pem_x509_crl(certificates.revoke(first).read_bytes())) == 1
    before = load_pem_x509_crl(certificates.revoke().read_bytes())[0]
    revocations = load_pem_x509_crl(certificates.revoke(first, second).read_bytes())
    assert len(revocations) == 2
    entry = revocations.get_revoked_certificate_by_serial_number(before.serial_number)
    assert entry is not None
    assert entry.revocation_date_utc == before.revocation_date_utc


def test_what_cannot_be_revoked_is_named(certificates: Certificates, tmp_path: Path) -> None:
    with pytest.raises(AccessError, match=r"me\.crt is no certificate that can be read"):
        revoke(certificates.folder, [tmp_path / "me.crt"])
    assert not (certificates.folder / "ca.crl").exists()
    (certificates.folder / "ca.crl").write_text("nothing")
    with pytest.raises(AccessError, match=r"the list .*ca\.crl cannot be read"):
        certificates.revoke()


def test_a_damaged_authority_is_said_to_be(certificates: Certificates) -> None:
    (certificates.folder / "ca.key").write_text("nothing")
    with pytest.raises(AccessError, match="cannot be read"):
        certificates.issue("client")
