"""What a container, or a service of systemd's, may take of its host: the kernel's control groups, of both versions.

/proc and torch tell what the host has, whatever a Kubernetes pod's limits are: who believes them is killed for its
memory, or has its threads wait for their turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _MemoryFiles:
    limit: str
    used: str
    # Of memory.stat: what the kernel gives back before it kills anyone.
    reclaimable: str


_MEMORY = {
    1: _MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _MemoryFiles("memory.max", "memory.current", "inactive_file"),
}


def memory_limit_bytes(root: Path = ROOT, own: Path = OWN) -> int | None:
    """The least of any group that this process is in; None where none is set."""
    return min((limit for limit, _ in _memory(root, own)), default=None)


def memory_room_bytes(root: Path = ROOT, own: Path = OWN) -> int | None:
    """What is left of the limits; None where none is set."""
    return min((max(0, limit - used) for limit, used in _memory(root, own)), default=None)


def cpu_quota(root: Path = ROOT, own: Path = OWN) -> float | None:
    """Cores that may be busy at a time, over a while; None where there is no limit."""
    return min(_quotas(root, own), default=None)


def _memory(root: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Bytes allowed and in use. The first version's "no limit" is a number beyond any host's memory: no harm."""
    for version, folder in _groups("memory", root, own):
        files = _MEMORY[version]
        limit, used = _number(folder / files.limit), _number(folder / files.used)
        if limit is not None and used is not None:
            statistics = dict(line.split(" ", 1) for line in _text(folder / "memory.stat").splitlines() if " " in line)
            yield limit, max(0, used - int(statistics.get(files.reclaimable, "0")))


def _quotas(root: Path, own: Path) -> Iterator[float]:
    for version, folder in _groups("cpu", root, own):
        if version == 2:
            quota, _, period = _text(folder / "cpu.max").partition(" ")
        else:
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            yield int(quota) / int(period)


def _groups(controller: str, root: Path, own: Path) -> Iterator[tuple[int, Path]]:
    """The process's own group and those around it, as (version, folder), as far as they can be seen from here."""
    for line in _text(own).splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0":
            version, top = 2, root
        elif controller in controllers.split(","):
            version, top = 1, root / controller
        else:
            continue
        folder = top / path.lstrip("/")
        # A container sees its own group as the top one, whatever its path is called outside.
        for group in (folder, *folder.parents):
            if group.is_relative_to(top) and group.is_dir():
                yield version, group


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
