"""What is read of TLS files, when, and what is said of files that are not sound."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from access.errors import AccessError
from access.files import TlsFiles, WatchedCredentials, read_credentials, tls_files
from access.peers import peer_of
from tests.access.certificates import Certificates


def test_names_come_from_the_certificate(certificates: Certificates) -> None:
    credentials = read_credentials(certificates.issue("planner", hosts=("planner.example", "10.1.0.5")))
    assert credentials.names == ("urn:partition-planner:planner", "planner.example", "10.1.0.5")


def test_an_expired_certificate_is_refused_with_its_names_and_what_to_do(certificates: Certificates) -> None:
    files = certificates.issue("daemon", hosts=("gpu7",), valid=timedelta(seconds=-1))
    with pytest.raises(AccessError, match=r"daemon\.crt \(for .*gpu7\) expired on .* UTC; `planner-cli certs issue`"):
        read_credentials(files)


def test_a_certificate_whose_time_has_not_begun_is_refused(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("access.authority._BACKDATED", -timedelta(hours=1))
    with pytest.raises(AccessError, match=r"daemon\.crt \(for .*\) is valid from .* UTC; is this host's clock right"):
        read_credentials(certificates.issue("daemon"))


def test_a_key_of_another_certificate_is_refused(certificates: Certificates) -> None:
    files, other = certificates.issue("daemon"), certificates.issue("client")
    shutil.copy(other.key, files.key)
    with pytest.raises(AccessError, match="does not belong to the certificate"):
        read_credentials(files)


@pytest.mark.parametrize(
    ("break_files", "message"),
    [
        (lambda files: files.key.unlink(), r"cannot read .*daemon\.key: No such file"),
        (lambda files: files.key.write_text("no key"), "holds no private key"),
        (lambda files: files.certificate.write_text("nothing"), r"daemon\.crt holds no certificate"),
        (lambda files: files.authorities.write_text("nothing"), r"ca\.crt holds no certificate"),
    ],
)
def test_files_that_are_not_sound_are_named(
    certificates: Certificates, break_files: Callable[[TlsFiles], object], message: str
) -> None:
    files = certificates.issue("daemon")
    break_files(files)
    with pytest.raises(AccessError, match=message):
        read_credentials(files)


def test_all_files_or_none_are_given() -> None:
    assert tls_files(None, None, None) is None
    with pytest.raises(AccessError, match="give all three files, or none"):
        tls_files(Path("a.crt"), None, Path("ca.crt"))


def test_a_list_of_revoked_certificates_is_taken_when_it_changes(certificates: Certificates) -> None:
    other = certificates.issue("client")
    files = replace(certificates.issue("daemon"), revoked=certificates.revoke())
    watched = WatchedCredentials(files)
    assert watched.current().revoked == frozenset()
    certificates.revoke(other)
    [serial_number] = watched.current().revoked
    assert peer_of(auth_context(files), watched) is not None
    with pytest.raises(AccessError, match=r"client, .*\) was revoked"):
        peer_of(auth_context(other), watched)
    assert files.revoked is not None
    files.revoked.write_text("nothing")
    assert watched.current().revoked == {serial_number}


@pytest.mark.parametrize("whose", ["nobody's", "another's"])
def test_a_list_that_no_authority_signed_is_refused(certificates: Certificates, tmp_path: Path, whose: str) -> None:
    path = Certificates.of(tmp_path / "other").revoke()
    if whose == "nobody's":
        path.write_text("nothing")
    with pytest.raises(AccessError, match=r"ca\.crl (is signed by none of the authorities|holds no list)"):
        read_credentials(replace(certificates.issue("daemon"), revoked=path))


def auth_context(files: TlsFiles) -> dict[str, list[bytes]]:
    """As gRPC tells it."""
    return {"x509_pem_cert": [files.certificate.read_bytes()]}


def test_replaced_files_are_taken(certificates: Certificates) -> None:
    watched = WatchedCredentials(certificates.issue("daemon"))
    before = watched.current()
    assert watched.current() is before
    certificates.issue("daemon")
    assert watched.current().certificate_pem != before.certificate_pem


def test_between_the_replacement_of_key_and_certificate_the_pair_before_stays(
    certificates: Certificates, tmp_path: Path
) -> None:
    files = certificates.issue("daemon")
    watched = WatchedCredentials(files)
    before, copy = watched.current(), tmp_path / "kept.crt"
    shutil.copy(files.certificate, copy)
    certificates.issue("daemon")
    renewed = files.certificate.read_bytes()
    os.replace(copy, files.certificate)
    assert watched.current() is before
    files.certificate.write_bytes(renewed)
    assert watched.current().certificate_pem == renewed


def test_who_begins_in_the_middle_of_a_replacement_waits_for_its_end(
    certificates: Certificates, tmp_path: Path
) -> None:
    files, renewed = certificates.issue("daemon"), tmp_path / "renewed.crt"
    before = files.certificate.read_bytes()
    certificates.issue("daemon")
    renewed.write_bytes(files.certificate.read_bytes())
    files.certificate.write_bytes(before)
    replacement = threading.Timer(0.2, os.replace, (renewed, files.certificate))
    replacement.start()
    assert WatchedCredentials(files).current().certificate_pem != before
    replacement.join()


def test_an_expired_certificate_does_not_replace_one_that_is_valid(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedCredentials(certificates.issue("daemon"))
    before = watched.current()
    certificates.issue("daemon", valid=timedelta(seconds=-1))
    assert watched.current() is before
    assert watched.current() is before
    assert len(caplog.messages) == 1
    assert "expired" in caplog.messages[0]


def test_the_log_says_once_that_a_certificate_is_about_to_expire(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedCredentials(certificates.issue("daemon", valid=timedelta(seconds=70)))
    watched.current()
    watched.current()
    assert len(caplog.messages) == 1
    assert "daemon.crt expires on" in caplog.messages[0]


def test_the_log_says_it_again_of_the_certificate_that_came_in_its_place(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedCredentials(certificates.issue("daemon", valid=timedelta(seconds=70)))
    watched.current()
    certificates.issue("daemon", valid=timedelta(seconds=60))
    watched.current()
    assert len([message for message in caplog.messages if "daemon.crt expires on" in message]) == 2


def test_keys_are_for_their_owner_alone(certificates: Certificates) -> None:
    files = certificates.issue("daemon")
    assert [path.stat().st_mode & 0o077 for path in (files.key, certificates.folder / "ca.key")] == [0, 0]
