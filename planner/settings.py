"""What a planner-server can be told: one frozen object, from the environment (PLANNER_LISTEN) or the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from access.addresses import parse_endpoint
from access.peers import DAEMON_ROLE

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30


class Settings(BaseSettings):
    """Read once, in planner.__main__, and passed down."""

    model_config = SettingsConfigDict(env_prefix="PLANNER_", frozen=True, extra="ignore")

    listen: str = Field("127.0.0.1:50051", description="host:port to serve on; port 0 takes a free one")
    data_dir: Path = Field(Path("planner-data"), description="folder for what has no URL of its own")
    database_url: str = Field("", description="sqlite:///... or postgresql://...; empty: planner.db in data_dir")
    blob_url: str = Field("", description="file:///... or s3://...; empty: the folder blobs in data_dir")
    lease_seconds: float = Field(10.0, gt=0, description="a daemon that is silent for longer is gone")
    claim_seconds: float = Field(
        5.0, gt=0, description="a planner that is silent for longer loses its work to others on its database"
    )
    recovery_seconds: float = Field(
        300.0, ge=0, description="how long a deployment that recovers waits for its devices before it has failed"
    )
    plan_workers: int = Field(2, ge=1, le=64, description="plans computed at the same time, one process each")
    plan_timeout_seconds: float = Field(3600.0, gt=0, description="a plan that takes longer has failed")
    plan_memory_bytes: int = Field(
        16 * GIBIBYTE, gt=0, description="address space that computing a plan, or checking a graph, may take"
    )
    max_pending_plans: int = Field(1000, ge=1, description="plans that may wait for a worker; more are refused")
    max_pending_plans_per_caller: int = Field(
        200, ge=1, description="of them, those of one caller, where callers are known: over TLS"
    )
    max_deployments_per_caller: int = Field(
        100, ge=1, description="deployments that have not ended, of one caller who is known; more are refused"
    )
    max_uploads_per_caller: int = Field(
        16, ge=1, description="uploads at the same time, of one caller who is known; more are refused"
    )
    max_uploaded_bytes_per_caller: int = Field(
        4096 * GIBIBYTE, gt=0, description="bytes of blobs that one caller who is known uploaded and that are there"
    )
    max_blob_bytes: int = Field(256 * GIBIBYTE, gt=0, description="largest blob that may be uploaded")
    max_graph_bytes: int = Field(GIBIBYTE, gt=0, description="largest blob that is read as a graph")
    max_graph_nodes: int = Field(250_000, gt=0, description="a graph with more nodes is refused")
    max_message_bytes: int = Field(64 * MEBIBYTE, gt=0, description="largest gRPC message, both ways")
    check_timeout_seconds: float = Field(120.0, gt=0, description="a graph that takes longer to check is refused")
    keep_days: float = Field(
        30.0, gt=0, description="how long request ids, plans' failures and daemons that are gone are remembered"
    )
    blob_grace_hours: float = Field(
        24.0, gt=0, description="how long a blob is kept that belongs to no graph and that nobody asks for"
    )
    stop_grace_seconds: float = Field(5.0, ge=0, description="how long calls may go on after SIGTERM")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["console", "json"] = Field("console", description="for people or for machines")
    rates_from: Literal["own", "newest"] = Field(
        "own", description="plans that do not say: rates fitted to the graph's own profiles, or to the newest of a kind"
    )
    metrics_listen: str = Field("", description="host:port for Prometheus; empty: none")
    tls_certificate: Path | None = Field(None, description="PEM file; with tls_key and tls_ca: mutual TLS")
    tls_key: Path | None = Field(None, description="PEM file, the certificate's private key")
    tls_ca: Path | None = Field(None, description="PEM file, authorities whose certificates are accepted")
    tls_revoked: Path | None = Field(None, description="PEM file, the authorities' list (CRL) of those that are not")
    access: Literal["off", "tokens"] = Field(
        "off", description="tokens: every call needs a bearer token, or a daemon's certificate; over TLS only"
    )
    daemon_identity: str = Field(DAEMON_ROLE, description="name in the certificates of daemons")
    insecure_plaintext_beyond_loopback: bool = Field(
        False, description="listen without TLS where others than this host can connect"
    )

    @field_validator("listen", "metrics_listen")
    @classmethod
    def _is_address(cls, text: str, field: ValidationInfo) -> str:
        if text or field.field_name == "listen":
            parse_endpoint(text)
        return text

    @property
    def database(self) -> str:
        return self.database_url or f"sqlite+aiosqlite:///{self.data_dir.absolute() / 'planner.db'}"

    @property
    def blobs(self) -> str:
        return self.blob_url or (self.data_dir.absolute() / "blobs").as_uri()

    @property
    def staging_dir(self) -> Path:
        """Where uploads wait until they are whole."""
        return self.data_dir.absolute() / "uploads"
