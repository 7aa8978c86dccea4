"""Whether a plan may be deployed now: its devices are live, and have the memory beside what they promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.errors import Conflict, DeviceFull, DeviceGone, NotDeployable, few_of
from planner.plan.plan import Plan
from planner.store.deployment_records import Daemon, StagePlacement, WorkerSettings

GIBIBYTE = float(1 << 30)
# Live devices that a message names: whatever a cluster has, the message ends with what to do.
_SHOWN_DEVICES = 8


def admit(plan: Plan, live: Sequence[Daemon], promised: Mapping[str, Mapping[str, int]]) -> tuple[StagePlacement, ...]:
    """Where each stage goes, copy by copy. `promised` holds bytes by device id and active deployment id.

    Raises DeviceGone, for a device that is drained too, or DeviceFull, naming the device and what is there instead.
    """
    daemons = {daemon.device.id: daemon for daemon in live if not daemon.draining}
    drained = {daemon.device.id for daemon in live if daemon.draining}
    for device_id, needed_bytes in _needed_bytes(plan).items():
        if device_id not in daemons:
            raise _gone(plan, device_id, daemons, is_drained=device_id in drained)
        _check_memory(daemons[device_id], needed_bytes, promised.get(device_id, {}))
    return tuple(
        StagePlacement(
            stage=stage.index,
            device_id=device_id,
            daemon_address=daemons[device_id].address,
            incarnation_id=daemons[device_id].incarnation_id,
        )
        for stage in plan.stages
        for device_id in stage.device_ids
    )


def check_compile(plan: Plan, workers: WorkerSettings) -> None:
    """Raises NotDeployable where stages of this plan cannot be compiled."""
    if workers.compile and plan.options.training is not None:
        raise NotDeployable(
            "the plan is for training, whose backward passes are cut into parts that torch.compile does not know; "
            "deploy it without compile, or plan for inference"
        )


def _needed_bytes(plan: Plan) -> dict[str, int]:
    """Bytes by device id, in order of each device's first stage."""
    needed: dict[str, int] = {}
    for stage in plan.stages:
        if not stage.device_ids:
            raise Conflict(f"stage {stage.index} is planned for no device; plan again", stage=stage.index)
        for device_id in stage.device_ids:
            needed[device_id] = needed.get(device_id, 0) + stage.memory.peak_bytes
    return needed


def _gone(plan: Plan, device_id: str, live: Mapping[str, Daemon], *, is_drained: bool) -> DeviceGone:
    stages = [stage.index for stage in plan.stages if device_id in stage.device_ids]
    present = _present(plan, live)
    why, remedy = "has no live daemon", "Start its stage-daemon again"
    if is_drained:
        why = "is drained, so that nothing new is put on it"
        remedy = f"Undo it with `planner-cli device drain {device_id} --undo`"
    return DeviceGone(
        f"device {device_id}, planned for stage {_listed(stages)}, {why}; live devices: {present}. "
        f"{remedy}, or plan for the devices that are live",
        device_id=device_id,
        stage=stages[0],
        live_device_ids=present,
    )


def _present(plan: Plan, live: Mapping[str, Daemon]) -> str:
    """Those that the plan has first."""
    planned = {device_id for stage in plan.stages for device_id in stage.device_ids}
    in_order = sorted(live, key=lambda device_id: (device_id not in planned, device_id))
    return few_of(in_order, _SHOWN_DEVICES) or "none"


def _check_memory(daemon: Daemon, needed_bytes: int, promised: Mapping[str, int]) -> None:
    device = daemon.device
    if needed_bytes > device.memory_bytes:
        raise DeviceFull(
            f"device {device.id} offers {_size(device.memory_bytes)} now, the plan needs {_size(needed_bytes)}: "
            "it has less memory than when the plan was made. Plan again",
            device_id=device.id,
            memory_bytes=device.memory_bytes,
            needed_bytes=needed_bytes,
        )
    promised_bytes = sum(promised.values())
    if needed_bytes + promised_bytes <= device.memory_bytes:
        return
    holders = ", ".join(sorted(promised))
    raise DeviceFull(
        f"device {device.id} offers {_size(device.memory_bytes)}, of which {_size(promised_bytes)} is promised to "
        f"{holders}; the plan needs {_size(needed_bytes)}. Stop one of them, or plan for other devices",
        device_id=device.id,
        memory_bytes=device.memory_bytes,
        needed_bytes=needed_bytes,
        promised_bytes=promised_bytes,
        deployment_ids=holders,
    )


def _listed(stages: Sequence[int]) -> str:
    return ", ".join(str(stage) for stage in stages)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / GIBIBYTE:.2f} GiB ({size_bytes} bytes)"
