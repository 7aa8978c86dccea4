"""What the device is and how much it holds, found out without touching it: the supervisor never opens a GPU."""

from __future__ import annotations

import hashlib
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import structlog

from access.container import memory_limit_bytes, memory_room_bytes
from stage_daemon.errors import Unavailable
from stage_daemon.worker.shared_cores import workers_share_cores

MEMINFO = Path("/proc/meminfo")
PROBE_SECONDS = 60.0
MEBIBYTE = 1 << 20
# What CUDA's context and libraries take of a GPU before a worker's first tensor.
CONTEXT_BYTES = 1 << 30
_PROBE = (
    "import torch, sys; p = torch.cuda.get_device_properties(int(sys.argv[1])); "
    "print(p.name, p.total_memory // 2**20, f'GPU-{p.uuid}', sep=', ')"
)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevice:
    """`torch_device` is "cpu" or "cuda:" and the UUID of a GPU: its number depends on who counts.

    `shares_cores`: workers take their shares of the host's.
    """

    id: str
    kind: str
    host: str
    memory_bytes: int
    torch_device: str
    shares_cores: bool = False


def find_device(
    *, gpu_index: int | None, device_id: str = "", kind: str = "", memory_bytes: int | None = None
) -> LocalDevice:
    """What is given is taken as it is, the rest is found out. Raises Unavailable where there is no such GPU."""
    host = host_name()
    if gpu_index is None:
        has_bytes = min(filter(None, (_of_meminfo("MemTotal", MEMINFO), memory_limit_bytes())), default=None)
        _warn_beyond(memory_bytes, has_bytes)
        return LocalDevice(
            id=device_id or f"{host}/cpu0",
            kind=kind or "cpu",
            host=host,
            memory_bytes=memory_bytes or available_memory_bytes(),
            torch_device="cpu",
            shares_cores=workers_share_cores(),
        )
    name, total_bytes, uuid = _probe_gpu(gpu_index)
    _warn_beyond(memory_bytes, total_bytes)
    return LocalDevice(
        id=device_id or f"{host}/gpu{gpu_index}",
        kind=kind or gpu_kind(name),
        host=host,
        memory_bytes=memory_bytes or max(MEBIBYTE, total_bytes - CONTEXT_BYTES),
        torch_device=f"cuda:{uuid}",
    )


def _warn_beyond(memory_bytes: int | None, has_bytes: int | None) -> None:
    if memory_bytes and has_bytes and memory_bytes > has_bytes:
        text = "--memory is more than the device has: plans will fill what is not there"
        log.warning(text, memory_bytes=memory_bytes, has_bytes=has_bytes)


def host_name(interfaces: Path = Path("/sys/class/net")) -> str:
    """The host's name and six digits that tell it from its clones, whose network cards have other addresses.

    Of virtual cards, which come and go, only where there is no other. The same after each start of the host.
    """
    cards = sorted(card for card in interfaces.glob("*") if card.name != "lo" and (card / "address").is_file())
    physical = [card for card in cards if (card / "device").exists()]
    addresses = sorted((card / "address").read_text().strip() for card in physical or cards)
    name = socket.gethostname()
    return f"{name}-{hashlib.sha256(' '.join(addresses).encode()).hexdigest()[:6]}" if addresses else name


def available_memory_bytes(meminfo: Path = MEMINFO) -> int:
    """Bytes that processes can take without swapping, nor beyond their container's limit."""
    available, room = _of_meminfo("MemAvailable", meminfo), memory_room_bytes()
    if available is None:
        raise Unavailable(f"{meminfo} does not say MemAvailable; give --memory")
    return available if room is None else max(1, min(available, room))


def _of_meminfo(name: str, meminfo: Path) -> int | None:
    match = re.search(rf"^{name}:\s+(\d+) kB$", meminfo.read_text(), re.MULTILINE)
    return int(match.group(1)) * 1024 if match else None


def gpu_kind(name: str) -> str:
    """ "NVIDIA H200" → "h200", "Tesla V100-SXM2-32GB" → "v100", "NVIDIA A100 80GB PCIe" → "a100"."""
    words = re.sub(r"\b(nvidia|tesla|geforce|quadro)\b", " ", name.lower()).split()
    return words[0].split("-")[0] if words else "gpu"


def _probe_gpu(index: int) -> tuple[str, int, str]:
    """Name, bytes and UUID."""
    query = ["--query-gpu=name,memory.total,uuid", "--format=csv,noheader,nounits", f"--id={index}"]
    answers = []
    # torch, whose import takes seconds, is asked only where nvidia-smi does not know.
    for command in (["nvidia-smi", *query], [sys.executable, "-c", _PROBE, str(index)]):
        answers.append(_run(command))
        match = re.fullmatch(r"(.+), (\d+), (GPU-[0-9a-f-]+)", answers[-1].strip())
        if match is not None:
            return match.group(1), int(match.group(2)) * MEBIBYTE, match.group(3)
    raise Unavailable(
        f"GPU {index} was not found: {'; '.join(_last_line(answer) for answer in answers)}. "
        "Give the number of a GPU that nvidia-smi lists, or --device cpu"
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing was said"])[-1][-200:]


def _run(command: list[str]) -> str:
    """Standard output, or what went wrong in words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return done.stdout if done.returncode == 0 else f"{command[0]}: {done.stdout}{done.stderr}"
