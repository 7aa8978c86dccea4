"""What a device of each kind can do at best, for plans whose inventory gives no figures of its own.

Figures are the vendors' dense peaks (no sparsity): NVIDIA's datasheets for H200 and H100 SXM, A100 80 GB SXM, A10, L4,
L40S, V100 SXM2 and T4; AMD's for MI300X. "cpu" stands for a few server cores; give a machine's own figures if known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from planner.cost.inventory import Device
from planner.graph.ir import Dtype


class RateClass(Enum):
    """Element types that a device computes at one rate; each names its field of DeviceKind."""

    FLOAT64 = "float64_flops_per_second"
    FLOAT32 = "float32_flops_per_second"
    FLOAT16 = "float16_flops_per_second"
    FLOAT8 = "float8_flops_per_second"


def rate_class(dtype: Dtype | None) -> RateClass:
    return RateClass[dtype.facts.rate] if dtype else RateClass.FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """Rates in floating point operations per second; `node_seconds` is what starting any kernel costs."""

    float64_flops_per_second: float
    float32_flops_per_second: float
    float16_flops_per_second: float
    float8_flops_per_second: float
    memory_bytes_per_second: float
    node_seconds: float = field(default=3e-6)

    def flops_per_second(self, dtype: Dtype | None) -> float:
        rate: float = getattr(self, rate_class(dtype).value)
        return rate


def _kind(float64: float, float32: float, float16: float, float8: float, memory: float, node: float) -> DeviceKind:
    """Tera-operations, gigabytes and microseconds, as datasheets give them."""
    return DeviceKind(
        float64_flops_per_second=float64 * 1e12,
        float32_flops_per_second=float32 * 1e12,
        float16_flops_per_second=float16 * 1e12,
        float8_flops_per_second=float8 * 1e12,
        memory_bytes_per_second=memory * 1e9,
        node_seconds=node * 1e-6,
    )


DEVICE_KINDS: Mapping[str, DeviceKind] = {
    "cpu": _kind(0.05, 0.1, 0.1, 0.1, 20, 2),
    "h200": _kind(67, 67, 989, 1979, 4800, 3),
    "h100": _kind(67, 67, 989, 1979, 3350, 3),
    "a100": _kind(19.5, 19.5, 312, 312, 2039, 3),
    "a10": _kind(0.49, 31.2, 125, 125, 600, 4),
    "l40s": _kind(1.4, 91.6, 362, 733, 864, 4),
    "l4": _kind(0.47, 30.3, 121, 242, 300, 4),
    "v100": _kind(7.8, 15.7, 125, 125, 900, 4),
    "t4": _kind(0.25, 8.1, 65, 65, 320, 5),
    "mi300x": _kind(163.4, 163.4, 1307, 2615, 5300, 4),
}

# An unknown kind counts as the slowest common accelerator, so that a plan errs on the side of giving it less.
DEFAULT_KIND = DEVICE_KINDS["t4"]


def device_kind(name: str) -> DeviceKind:
    return DEVICE_KINDS.get(name.lower(), DEFAULT_KIND)


def memory_bytes_per_second(device: Device) -> float:
    """Its own, else that of its kind."""
    return device.memory_bytes_per_second or device_kind(device.kind).memory_bytes_per_second
