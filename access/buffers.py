"""Several buffers in one sendmsg, and what is left of them where a socket takes only a part."""

from __future__ import annotations

# What one sendmsg takes: IOV_MAX of Linux.
MAX_BUFFERS = 1024


def drop_sent(buffers: list[memoryview], num_bytes: int) -> None:
    """Takes from the front what one sendmsg of them has sent."""
    while buffers and num_bytes >= len(buffers[0]):
        num_bytes -= len(buffers.pop(0))
    if buffers:
        buffers[0] = buffers[0][num_bytes:]
