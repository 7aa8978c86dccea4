"""A gigabyte of weights on its way to the daemons, beside `sha256sum` of the same files, and how soon commands answer.

    python -m benchmarks.weights_and_starts [--mebibytes 1024] [--only starts|weights]

One linear layer per 64 MiB; two daemons hold half of it each. CPU is of all processes, from /proc.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import torch

from planner.client import PlannerClient, export
from planner.client.local_cluster import LocalCluster
from planner.plan.options import CutMode

WIDTH = 4096
LAYER_MEBIBYTES = 64
NUM_STARTS = 5
CLI = (sys.executable, "-m", "planner.cli")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--only", choices=("starts", "weights"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="weights-") as folder:
        if arguments.only != "weights":
            _starts(Path(folder))
        if arguments.only != "starts":
            _weights(Path(folder), max(2, arguments.mebibytes // LAYER_MEBIBYTES))


def _weights(folder: Path, num_layers: int) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(num_layers))).eval()
    exported = export(model, (torch.randn(1, WIDTH),))
    saved = folder / "model"
    _print("save", _seconds(lambda: exported.save(saved)))
    files = sorted(str(path) for path in saved.glob("*.safetensors"))
    memory_bytes = (num_layers * LAYER_MEBIBYTES + 512) << 20
    with LocalCluster(data_dir=folder / "data", memory_bytes=(memory_bytes, memory_bytes)) as cluster:
        client = PlannerClient(cluster.planner_address)
        _print("sha256sum", _seconds(lambda: _quietly("sha256sum", *files)))
        _print("submit, from files", _seconds(lambda: client.submit(saved)))
        _print("submit again", _seconds(lambda: client.submit(saved)))
        graph = client.submit(exported)
        _print("submit again, from memory", _seconds(lambda: client.submit(exported)))
        cut = str(num_layers // 2 - 1)
        plan = client.create_plan(graph.id, CutMode(module_paths=(cut,)))
        _print("sha256sum", _seconds(lambda: _quietly("sha256sum", *files)))
        _print("read all files", _seconds(lambda: [Path(file).read_bytes() for file in files]))
        deployed = []
        _print("deploy", _seconds(lambda: deployed.append(client.deploy(plan.id))))


def _starts(folder: Path) -> None:
    """Every command in turns with the two peers, so that all meet the same machine; the median round of each."""
    with LocalCluster(data_dir=folder / "starts", memory_bytes=(1 << 30,)) as cluster:
        address = ("--server", cluster.planner_address)
        submit = ("submit", "examples.tiny_llama:build", "--name", "tiny-llama", *address)
        _quietly(*CLI, *submit)
        commands: dict[str, Callable[[], object]] = {
            "an empty Python": lambda: _quietly(sys.executable, "-c", ""),
            "import torch": lambda: _quietly(sys.executable, "-c", "import torch"),
            "import transformers' Llama": lambda: _quietly(sys.executable, "-c", "import examples.tiny_llama"),
            "planner-cli --help": lambda: _quietly(*CLI, "--help"),
            "planner-cli device list": lambda: _quietly(*CLI, "device", "list", *address),
            "planner-cli plan list": lambda: _quietly(*CLI, "plan", "list", *address),
            "planner-cli plan create": lambda: _quietly(*CLI, "plan", "create", "--graph", "tiny-llama", *address),
            "planner-cli submit tiny-llama": lambda: _quietly(*CLI, *submit),
        }
        rounds = [{name: _seconds(command) for name, command in commands.items()} for _ in range(NUM_STARTS)]
    ups = [_seconds_to_ready() for _ in range(NUM_STARTS)]
    for name in commands:
        _print(name, sorted(seconds[name] for seconds in rounds)[NUM_STARTS // 2])
    _print("planner-cli up, until ready", sorted(ups)[NUM_STARTS // 2])


def _seconds_to_ready() -> tuple[float, float]:
    """Of `up` with two daemons; CPU of all its processes."""
    wall, ticks = time.perf_counter(), _ticks()
    # What it is told by: the first line of its table.
    with subprocess.Popen([*CLI, "up"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as up:
        assert up.stdout is not None
        up.stdout.readline()
        seconds = time.perf_counter() - wall, (_ticks() - ticks) / _TICKS_PER_SECOND
        up.send_signal(signal.SIGINT)
        up.stdout.read()
    return seconds


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds; CPU of this process and everything below it."""
    wall, ticks = time.perf_counter(), _ticks()
    work()
    return time.perf_counter() - wall, (_ticks() - ticks) / _TICKS_PER_SECOND


def _ticks() -> int:
    return sum(map(_own_ticks, _family(os.getpid())))


def _family(process_id: int) -> Iterator[int]:
    yield process_id
    # Threads and processes end meanwhile.
    with suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{process_id}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _own_ticks(process_id: int) -> int:
    """Of a process and the children that it has waited for."""
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15]))
    return 0


def _quietly(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _print(what: str, seconds: tuple[float, float]) -> None:
    print(f"{what:32} {seconds[0]:7.2f} s   {seconds[1]:7.2f} s of CPU", flush=True)


if __name__ == "__main__":
    main()
