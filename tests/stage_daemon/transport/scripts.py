"""What the far end of a channel does in a test, in a process of its own."""

from __future__ import annotations

import os
import signal
import threading

import torch

from stage_daemon.transport.channel import ReceiveChannel, SendChannel
from stage_daemon.transport.parcel import Item, MicrobatchFailure, Parcel, ParcelKind
from tests.waiting import WAIT_SECONDS

NUM_MANY = 30
# More than the buffers of any socket.
BIG_ELEMENTS = 3_000_000


def data(microbatch: int, *items: Item, session_id: int = 2**64 - 1) -> Parcel:
    return Parcel(
        kind=ParcelKind.DATA, microbatch=microbatch, session_id=session_id, sequence=microbatch * 10, items=items
    )


def odd_tensors() -> dict[str, torch.Tensor]:
    """Every dtype and layout that a stage may hand on, the same at each call."""
    generator = torch.Generator().manual_seed(5)

    def numbers(*dims: int) -> torch.Tensor:
        return torch.randn(dims, generator=generator)

    return {
        "plain": numbers(3, 4),
        "transposed": numbers(3, 4).t(),
        "permuted": numbers(2, 3, 4).permute(2, 0, 1),
        "channels_last": numbers(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "expanded": numbers(3, 1, 2).expand(3, 5, 2),
        "expanded_transposed": numbers(4, 3).t().unsqueeze(1).expand(3, 6, 4),
        "column": numbers(6, 12)[:, 4:8],
        "every_second": numbers(9)[::2],
        "far_apart": numbers(4, 300)[:, 7:8].expand(4, 3),
        "windows": numbers(10).unfold(0, 4, 1),
        "tail": numbers(10)[3:],
        "zero_dims": numbers(),
        "empty": numbers(0, 4),
        "empty_expanded": numbers(1, 4).expand(0, 4),
        "flags": numbers(7) > 0,
        "bfloat16": numbers(5).to(torch.bfloat16),
        "float8": numbers(5).to(torch.float8_e4m3fn),
        "float64": numbers(2, 2).double(),
        "int8": numbers(5).mul(50).to(torch.int8),
        "int64": numbers(5).mul(1e6).to(torch.int64),
        "conjugate": torch.complex(numbers(3), numbers(3)).conj(),
        "not_a_number": torch.tensor([float("nan"), -0.0, float("inf")]),
    }


def send_odd_tensors(channel: SendChannel) -> None:
    channel.send(data(1, *odd_tensors().values()))


def send_scalars(channel: SendChannel) -> None:
    channel.send(data(1, -(2**63), -0.1, True))
    channel.send(data(2, 2**63 - 1, float("inf"), False))


def sizes(microbatch: int) -> tuple[int, int]:
    return (microbatch * 7) % 5, 1 + (microbatch * 11) % 13


def send_changing_sizes(channel: SendChannel) -> None:
    for microbatch in range(1, NUM_MANY + 1):
        rows, columns = sizes(microbatch)
        channel.send(data(microbatch, torch.full((rows, columns), float(microbatch)), torch.arange(rows)))
    channel.send(Parcel(kind=ParcelKind.END))


def send_big(channel: SendChannel) -> None:
    for microbatch in (1, 2, 3):
        channel.send(data(microbatch, torch.arange(BIG_ELEMENTS, dtype=torch.float32) * microbatch))


def send_failure_between(channel: SendChannel) -> None:
    channel.send(data(1, torch.ones(2, 2)))
    failure = MicrobatchFailure(
        reason="STAGE_FAILED", message="index 7 is out of range\nof 5 rows", stage=0, device_id="node0/cpu"
    )
    channel.send(Parcel(kind=ParcelKind.ERROR, microbatch=2, session_id=9, sequence=2, failure=failure))
    channel.send(data(3, torch.zeros(2, 2)))
    channel.send(Parcel(kind=ParcelKind.END))


def send_nothing(channel: SendChannel) -> None:
    pass


def send_after(seconds: float, channel: SendChannel) -> None:
    threading.Event().wait(seconds)
    channel.send(data(1, torch.ones(1, 1)))


def send_first_and_third(channel: SendChannel) -> None:
    channel.send(data(1, torch.ones(1, 1)))
    channel.send(data(3, torch.ones(1, 1)))


def send_one_then_die(channel: SendChannel) -> None:
    channel.send(data(1, torch.ones(1, 1)))
    channel.wait(WAIT_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def send_one_then_hang(channel: SendChannel) -> None:
    channel.send(data(1, torch.ones(1, 1)))
    channel.wait(WAIT_SECONDS)
    os.kill(os.getpid(), signal.SIGSTOP)


def receive_nothing(channel: ReceiveChannel) -> None:
    pass


def receive_one(channel: ReceiveChannel) -> None:
    channel.receive()


def receive_all(channel: ReceiveChannel) -> None:
    while channel.receive()[0].kind is not ParcelKind.END:
        pass


def receive_one_then_die(channel: ReceiveChannel) -> None:
    channel.receive()
    os.kill(os.getpid(), signal.SIGKILL)


def receive_one_then_hang(channel: ReceiveChannel) -> None:
    channel.receive()
    os.kill(os.getpid(), signal.SIGSTOP)
