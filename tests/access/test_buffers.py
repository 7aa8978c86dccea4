"""What is left of several buffers once a socket has taken a part of them."""

from __future__ import annotations

import pytest

from access.buffers import drop_sent


@pytest.mark.parametrize("num_bytes", range(8))
def test_what_has_been_sent_goes_from_the_front(num_bytes: int) -> None:
    left = [memoryview(part) for part in (b"ab", b"", b"cde", b"fg")]
    drop_sent(left, num_bytes)
    assert b"".join(left) == b"abcdefg"[num_bytes:]
    assert not left or left[0]
