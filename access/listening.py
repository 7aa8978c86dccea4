"""Which addresses need mutual TLS: all that others than this host can reach."""

from __future__ import annotations

import ipaddress

from access.errors import AccessError


def is_loopback(host: str) -> bool:
    """Names other than localhost are taken for reachable."""
    host = host.strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_listening(host: str, *, has_tls: bool, plaintext_allowed: bool) -> None:
    """Raises AccessError."""
    if has_tls or plaintext_allowed or is_loopback(host):
        return
    raise AccessError(
        f"listening on {host or 'all addresses'} lets others than this host call, who would not be asked who they are: "
        "give --tls-certificate, --tls-key and --tls-ca (`planner-cli certs init` and `certs issue` make them), "
        "or listen on 127.0.0.1. --insecure-plaintext-beyond-loopback serves whoever can connect"
    )
