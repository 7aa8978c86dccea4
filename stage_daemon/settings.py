"""What a stage-daemon can be told: one frozen object, from the environment (STAGE_DAEMON_GPU) or the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from access.addresses import check_targets, parse_endpoint
from access.peers import PLANNER_ROLE
from stage_daemon.custom_operators import parse_custom_operators

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?", re.IGNORECASE)


def parse_bytes(text: object) -> object:
    """ "2GiB", "500 MB", "1073741824" to a count of bytes; anything else is left for the type to refuse."""
    if not isinstance(text, str):
        return text
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is no size; write 2GiB, 500MB or a count of bytes")
    return int(float(match.group(1)) * unit)


Bytes = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]


class Settings(BaseSettings):
    """Read once, in stage_daemon.__main__, and passed down."""

    model_config = SettingsConfigDict(env_prefix="STAGE_DAEMON_", frozen=True, extra="ignore")

    planner: str = Field(
        "127.0.0.1:50051", description="host:port of the planner-server, or of several on one database: a:1,b:2"
    )
    listen: str = Field("127.0.0.1:0", description="host:port to serve on; port 0 takes a free one")
    advertise: str = Field("", description="host or host:port that others reach this daemon at; empty: as it listens")
    device: Literal["", "cpu", "gpu"] = Field("", description="cpu, or gpu (gpu 0 where no number is given)")
    gpu: int | None = Field(None, ge=0, description="number of the GPU, as nvidia-smi counts them")
    device_id: str = Field(
        "", description="unique name of the device; empty: <host>-<six digits of its network cards>/gpu<N> or .../cpu0"
    )
    kind: str = Field("", description="kind that speeds are kept by (h200, cpu); empty: found out")
    memory: Bytes | None = Field(None, description="bytes that plans may fill (2GiB); none: what the device has")
    metrics_listen: str = Field("", description="host:port for Prometheus; empty: none")
    custom_operators: str = Field(
        "",
        description="operators of torch.library that graphs may use, by the module that registers them and that is "
        "imported where stages run: my.ops=my::gelu,my::norm.fast other=other::sort; empty: none",
    )
    drain_seconds: float = Field(30.0, ge=0, description="how long deployments may finish after SIGTERM")
    worker_silence_seconds: float = Field(
        15.0, gt=0, description="a worker that answers nothing for this long hangs, and its deployment has failed"
    )
    max_sessions_per_caller: int = Field(
        256, ge=1, description="sessions open at once, of one caller who is known: over TLS"
    )
    tls_certificate: Path | None = Field(None, description="PEM file; with tls_key and tls_ca: mutual TLS")
    tls_key: Path | None = Field(None, description="PEM file, the certificate's private key")
    tls_ca: Path | None = Field(None, description="PEM file, authorities whose certificates are accepted")
    tls_revoked: Path | None = Field(None, description="PEM file, the authorities' list (CRL) of those that are not")
    planner_identity: str = Field(
        PLANNER_ROLE, description="name in the planner's certificate: over TLS, commands are taken from it alone"
    )
    insecure_plaintext_beyond_loopback: bool = Field(
        False, description="listen without TLS where others than this host can connect: whoever can, may do everything"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least level that is logged")
    log_format: Literal["console", "json"] = Field("console", description="for people or for machines")

    @model_validator(mode="after")
    def _one_device(self) -> Settings:
        if self.gpu is not None and self.device == "cpu":
            raise ValueError(f"gpu is {self.gpu} and device is cpu; a daemon has one device: name one of them")
        if self.gpu is None and not self.device:
            raise ValueError("no device is named; give --gpu N, or --device cpu")
        return self

    @field_validator("listen", "advertise", "metrics_listen")
    @classmethod
    def _is_address(cls, text: str, field: ValidationInfo) -> str:
        """What is advertised, or listened at, takes a port by itself."""
        if text or field.field_name == "listen":
            parse_endpoint(text, None if field.field_name == "metrics_listen" else 0)
        return text

    @field_validator("planner")
    @classmethod
    def _can_be_asked(cls, text: str) -> str:
        check_targets(text)
        return text

    @field_validator("custom_operators")
    @classmethod
    def _names_operators(cls, text: str) -> str:
        parse_custom_operators(text)
        return text

    @property
    def gpu_index(self) -> int | None:
        """None on a CPU."""
        return None if self.device == "cpu" else self.gpu or 0
