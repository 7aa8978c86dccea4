"""The element types that tensors may have here: the wire contract's, by torch's own names.

A position is a type's number in the header of a message between stages. Names rather than types: the supervisor sizes
microbatches without torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DtypeFacts:
    """`safetensors`: the format's name for it, "" where it has none."""

    size_bytes: int
    safetensors: str = ""


DTYPES: Mapping[str, DtypeFacts] = {
    "float64": DtypeFacts(size_bytes=8, safetensors="F64"),
    "float32": DtypeFacts(size_bytes=4, safetensors="F32"),
    "float16": DtypeFacts(size_bytes=2, safetensors="F16"),
    "bfloat16": DtypeFacts(size_bytes=2, safetensors="BF16"),
    "float8_e4m3fn": DtypeFacts(size_bytes=1, safetensors="F8_E4M3"),
    "float8_e5m2": DtypeFacts(size_bytes=1, safetensors="F8_E5M2"),
    "int64": DtypeFacts(size_bytes=8, safetensors="I64"),
    "int32": DtypeFacts(size_bytes=4, safetensors="I32"),
    "int16": DtypeFacts(size_bytes=2, safetensors="I16"),
    "int8": DtypeFacts(size_bytes=1, safetensors="I8"),
    "uint8": DtypeFacts(size_bytes=1, safetensors="U8"),
    "bool": DtypeFacts(size_bytes=1, safetensors="BOOL"),
    "complex64": DtypeFacts(size_bytes=8, safetensors="C64"),
    "complex128": DtypeFacts(size_bytes=16),
}
