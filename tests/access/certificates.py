"""Certificates of an authority that lives for one test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from access.authority import create_authority, issue, revoke
from access.files import TlsFiles

DAY = timedelta(days=1)
HERE = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Everyone's files in one folder, which also holds the authority."""

    folder: Path

    @classmethod
    def of(cls, folder: Path) -> Certificates:
        create_authority(folder, DAY)
        return cls(folder=folder)

    def issue(self, role: str, *, hosts: Sequence[str] = HERE, valid: timedelta = DAY, name: str = "") -> TlsFiles:
        """Again under the same name: the files are replaced."""
        return issue(self.folder, self.folder, role=role, name=name or role, hosts=hosts, valid=valid)

    def revoke(self, *files: TlsFiles) -> Path:
        """The list of those that count no longer, these and the ones before; of none it is empty."""
        return revoke(self.folder, [one.certificate for one in files])


def environment(prefix: str, files: TlsFiles) -> dict[str, str]:
    """`prefix` is "PLANNER" or "STAGE_DAEMON"."""
    revoked = {f"{prefix}_TLS_REVOKED": str(files.revoked)} if files.revoked else {}
    return {
        **revoked,
        f"{prefix}_TLS_CERTIFICATE": str(files.certificate),
        f"{prefix}_TLS_KEY": str(files.key),
        f"{prefix}_TLS_CA": str(files.authorities),
    }
