"""What a daemon says of its device."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import structlog

from stage_daemon.control import device
from stage_daemon.control.device import available_memory_bytes, find_device, gpu_kind, host_name
from stage_daemon.errors import Unavailable


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100 80GB PCIe", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA", "gpu"),
    ],
)
def test_kind_is_the_models_name(name: str, kind: str) -> None:
    assert gpu_kind(name) == kind


def test_cpu_takes_what_it_is_given_and_finds_out_the_rest() -> None:
    device = find_device(gpu_index=None)
    assert device.id == f"{device.host}/cpu0"
    assert (device.kind, device.torch_device) == ("cpu", "cpu")
    assert device.memory_bytes > 0
    named = find_device(gpu_index=None, device_id="rack/cpu7", kind="epyc", memory_bytes=5)
    assert (named.id, named.kind, named.memory_bytes) == ("rack/cpu7", "epyc", 5)


def card(folder: Path, name: str, address: str, *, physical: bool) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "address").write_text(f"{address}\n")
    if physical:
        (folder / name / "device").mkdir()


def test_clones_of_a_host_are_told_apart_by_their_network_cards(tmp_path: Path) -> None:
    names = []
    for clone, address in (("one", "02:01"), ("other", "02:02"), ("one again", "02:01")):
        card(tmp_path / clone, "eth0", address, physical=True)
        card(tmp_path / clone, "docker0", f"{clone} it comes and goes", physical=False)
        card(tmp_path / clone, "lo", "00:00", physical=False)
        names.append(host_name(tmp_path / clone))
    assert names[0] == names[2] != names[1]
    assert all(name.startswith(f"{socket.gethostname()}-") for name in names)
    card(tmp_path / "container", "eth0", "02:07", physical=False)
    assert host_name(tmp_path / "container") not in {*names, socket.gethostname()}
    assert host_name(tmp_path / "none") == socket.gethostname()


def test_memory_that_the_kernel_does_not_tell_is_asked_for(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  100 kB\nMemAvailable:   40 kB\n")
    assert available_memory_bytes(meminfo) == 40 * 1024
    meminfo.write_text("MemTotal:  100 kB\n")
    with pytest.raises(Unavailable, match="--memory"):
        available_memory_bytes(meminfo)


def test_a_containers_limit_leaves_less_than_its_host_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable:   40 kB\n")
    for room, available in ((50_000, 40 * 1024), (3_000, 3_000), (0, 1)):
        monkeypatch.setattr(device, "memory_room_bytes", lambda room=room: room)
        assert available_memory_bytes(meminfo) == available


def test_more_memory_than_there_is_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "memory_limit_bytes", lambda: 1000)
    with structlog.testing.capture_logs() as logged:
        find_device(gpu_index=None, memory_bytes=1000)
        find_device(gpu_index=None)
    assert logged == []
    with structlog.testing.capture_logs() as logged:
        assert find_device(gpu_index=None, memory_bytes=1001).memory_bytes == 1001
    [warning] = logged
    assert (warning["log_level"], warning["memory_bytes"], warning["has_bytes"]) == ("warning", 1001, 1000)


def nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts one in the path that answers by the script; torch's own answer is that there is none."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(device, "_PROBE", "import sys; sys.exit('torch sees no GPU ' + sys.argv[1])")


@pytest.mark.services
def test_a_gpu_is_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(
        tmp_path, monkeypatch, 'case "$*" in *--id=3) echo "NVIDIA H200, 143771, GPU-5b6e-11";; *) exit 6;; esac'
    )
    device = find_device(gpu_index=3)
    assert device.id == f"{device.host}/gpu3"
    assert (device.kind, device.torch_device) == ("h200", "cuda:GPU-5b6e-11")
    # A gibibyte of it is CUDA's own.
    assert device.memory_bytes == (143771 - 1024) * 2**20
    with structlog.testing.capture_logs() as logged:
        named = find_device(gpu_index=3, device_id="rack/gpu7", kind="big", memory_bytes=5)
    assert (named.id, named.kind, named.memory_bytes, logged) == ("rack/gpu7", "big", 5, [])
    with structlog.testing.capture_logs() as logged:
        find_device(gpu_index=3, memory_bytes=143772 * 2**20)
    assert [warning["has_bytes"] for warning in logged] == [143771 * 2**20]


@pytest.mark.services
def test_a_gpu_that_nvidia_smi_does_not_know_is_asked_of_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo broken; exit 9")
    monkeypatch.setattr(device, "_PROBE", "import sys; print('NVIDIA L4', 23034, 'GPU-0a', sep=', ')")
    local = find_device(gpu_index=0)
    assert (local.kind, local.memory_bytes) == ("l4", (23034 - 1024) * 2**20)
    assert local.torch_device == "cuda:GPU-0a"


@pytest.mark.services
def test_a_gpu_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "echo 'No devices were found' >&2; exit 6")
    with pytest.raises(Unavailable) as raised:
        find_device(gpu_index=999)
    assert raised.value.message == (
        f"GPU 999 was not found: nvidia-smi: No devices were found; {sys.executable}: torch sees no GPU 999. "
        "Give the number of a GPU that nvidia-smi lists, or --device cpu"
    )


@pytest.mark.services
def test_without_nvidia_smi_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvidia_smi(tmp_path, monkeypatch, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(Unavailable, match=r"GPU 0 was not found: nvidia-smi: .*No such file"):
        find_device(gpu_index=0)
