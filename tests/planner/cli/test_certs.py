"""`planner-cli certs`, and the TLS files that other commands use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from access.files import TlsFiles, read_credentials
from planner.cli import exit_codes
from planner.client.config import find_tls
from planner.errors import InvalidArgument
from tests.planner.cli.conftest import RunCli


def test_a_certificate_of_one_s_own_authority_is_found_by_the_config_file(bare_cli: RunCli, tmp_path: Path) -> None:
    assert bare_cli("certs", "init").status == 0
    issued = bare_cli("certs", "issue", "me", "--role", "client", "--out", tmp_path / "tls")
    assert issued.status == 0, issued.stderr
    assert find_tls() is None
    keys = "tls_certificate: tls/me.crt\ntls_key: tls/me.key\ntls_ca: tls/ca.crt\n"
    Path(os.environ["PLANNER_CONFIG"]).write_text(keys)
    tls = find_tls()
    assert tls is not None
    assert read_credentials(tls).names == ("urn:partition-planner:client",)


def test_the_environment_names_other_files(bare_cli: RunCli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CERTIFICATE", "KEY", "CA"):
        monkeypatch.setenv(f"PLANNER_TLS_{name}", f"/tls/{name}")
    tls = find_tls()
    assert tls is not None
    assert [str(path) for path in (tls.certificate, tls.key, tls.authorities)] == [
        "/tls/CERTIFICATE",
        "/tls/KEY",
        "/tls/CA",
    ]
    monkeypatch.delenv("PLANNER_TLS_KEY")
    with pytest.raises(InvalidArgument, match="all three files"):
        find_tls()


def test_what_others_call_needs_a_name_to_be_called_by(bare_cli: RunCli) -> None:
    bare_cli("certs", "init")
    refused = bare_cli("certs", "issue", "gpu7", "--role", "daemon")
    assert refused.status == exit_codes.INVALID_INPUT
    assert "--host" in refused.stderr


def test_certificates_are_revoked_by_their_files(bare_cli: RunCli, tmp_path: Path) -> None:
    bare_cli("certs", "init")
    bare_cli("certs", "issue", "me", "--role", "client", "--out", tmp_path)
    assert bare_cli("certs", "revoke", tmp_path / "you.crt").status == exit_codes.INVALID_INPUT
    revoked = bare_cli("certs", "revoke", tmp_path / "me.crt")
    assert revoked.status == 0, revoked.stderr
    files = TlsFiles(
        certificate=tmp_path / "me.crt",
        key=tmp_path / "me.key",
        authorities=tmp_path / "ca.crt",
        revoked=Path("partition-planner-ca/ca.crl"),
    )
    assert len(read_credentials(files).revoked) == 1


def test_an_authority_is_made_once_and_needed(bare_cli: RunCli) -> None:
    assert bare_cli("certs", "issue", "me", "--role", "client").status == exit_codes.INVALID_INPUT
    bare_cli("certs", "init")
    assert bare_cli("certs", "init").status == exit_codes.INVALID_INPUT
