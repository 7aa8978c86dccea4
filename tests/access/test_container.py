"""What the kernel's control groups leave to a container: folders as the kernel lays them out, of both versions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from access.container import cpu_quota, memory_limit_bytes, memory_room_bytes

NO_LIMIT = 9223372036854771712


class Groups:
    def __init__(self, folder: Path, own: str) -> None:
        self.root = folder / "cgroup"
        self.own = folder / "own"
        self.root.mkdir()
        self.own.write_text(own)

    def write(self, path: str, files: Mapping[str, object]) -> None:
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(f"{text}\n")

    def asked(self) -> tuple[int | None, int | None, float | None]:
        return (
            memory_limit_bytes(self.root, self.own),
            memory_room_bytes(self.root, self.own),
            cpu_quota(self.root, self.own),
        )


def test_a_pod_sees_its_own_group_at_the_top(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "0::/\n")
    groups.write(
        "",
        {
            "memory.max": 1000,
            "memory.current": 700,
            "memory.stat": "anon 600\ninactive_file 90\nactive_file 10",
            "cpu.max": "250000 100000",
        },
    )
    # What was read from files is given back before anyone is killed.
    assert groups.asked() == (1000, 390, 2.5)


def test_the_least_of_all_groups_around_it_counts(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "0::/slice/service/worker\n")
    groups.write("slice", {"memory.max": 5000, "memory.current": 4950, "memory.stat": "", "cpu.max": "50000 100000"})
    groups.write(
        "slice/service", {"memory.max": 900, "memory.current": 100, "memory.stat": "", "cpu.max": "max 100000"}
    )
    groups.write("slice/service/worker", {"memory.max": "max", "memory.current": 90})
    groups.write("another", {"memory.max": 1, "memory.current": 1, "cpu.max": "1 100000"})
    assert groups.asked() == (900, 50, 0.5)


@pytest.mark.parametrize("path", ["/kubepods/pod1/container", "/"])
def test_the_first_version_has_a_folder_for_each_controller(tmp_path: Path, path: str) -> None:
    """Which a container sees without the folders that its path names."""
    groups = Groups(tmp_path, f"4:memory:{path}\n2:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::/elsewhere\n")
    groups.write(
        "memory",
        {
            "memory.limit_in_bytes": 2000,
            "memory.usage_in_bytes": 1500,
            "memory.stat": "inactive_file 1\ntotal_inactive_file 400",
        },
    )
    groups.write("cpu", {"cpu.cfs_quota_us": 400000, "cpu.cfs_period_us": 100000})
    assert groups.asked() == (2000, 900, 4.0)


def test_without_limits_the_host_counts(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "4:memory:/\n2:cpu:/\n0::/\n")
    assert groups.asked() == (None, None, None)
    groups.write("memory", {"memory.limit_in_bytes": NO_LIMIT, "memory.usage_in_bytes": 5, "memory.stat": ""})
    groups.write("cpu", {"cpu.cfs_quota_us": -1, "cpu.cfs_period_us": 100000})
    assert groups.asked() == (NO_LIMIT, NO_LIMIT - 5, None)


def test_where_the_kernel_has_none_the_host_counts(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path / "none", tmp_path / "nor this") is None
    assert cpu_quota(tmp_path / "none", tmp_path / "nor this") is None


def test_memory_beyond_the_limit_leaves_no_room(tmp_path: Path) -> None:
    groups = Groups(tmp_path, "0::/\n")
    groups.write("", {"memory.max": 1000, "memory.current": 1200, "memory.stat": ""})
    assert groups.asked() == (1000, 0, None)
