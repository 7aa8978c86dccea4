"""Frames cross a socket whole, however it cuts them."""

from __future__ import annotations

import socket
import threading

import pytest

from stage_daemon.worker.frames import Frame, FrameKind, read_frame, write_frame


@pytest.fixture
def ends() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


def test_frames_come_in_order_with_all_that_they_say(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    frames = [
        Frame(kind=FrameKind.OUTPUT, session_id=2**64 - 1, sequence=2**63, body=b"x" * 5_000_000),
        Frame(kind=FrameKind.OUTPUT_TAKEN),
        Frame(kind=FrameKind.FAILED, body=b"\0"),
    ]
    writing = threading.Thread(target=lambda: [write_frame(ours, frame) for frame in frames])
    writing.start()
    assert [read_frame(theirs) for _ in frames] == frames
    writing.join()


@pytest.mark.parametrize("num_bytes", [0, 5, 25, 27])
def test_an_end_that_goes_away_is_the_end(ends: tuple[socket.socket, socket.socket], num_bytes: int) -> None:
    """Also within a head, behind it, and within a body."""
    ours, theirs = ends
    frame = Frame(kind=FrameKind.INPUT, body=b"body")
    ours.sendall((frame.head() + frame.body)[:num_bytes])
    ours.close()
    assert read_frame(theirs) is None
