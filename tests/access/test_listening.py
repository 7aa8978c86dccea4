"""Which addresses need mutual TLS."""

from __future__ import annotations

import pytest

from access.errors import AccessError
from access.listening import check_listening


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback_needs_none(host: str) -> None:
    check_listening(host, has_tls=False, plaintext_allowed=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "[::]", "", "10.1.0.5", "gpu7", "::ffff:10.0.0.1", "localhost.me"])
def test_what_others_can_reach_does(host: str) -> None:
    with pytest.raises(AccessError, match="--insecure-plaintext-beyond-loopback"):
        check_listening(host, has_tls=False, plaintext_allowed=False)
    check_listening(host, has_tls=True, plaintext_allowed=False)
    check_listening(host, has_tls=False, plaintext_allowed=True)
