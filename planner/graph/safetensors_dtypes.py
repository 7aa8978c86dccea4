"""What the safetensors format calls the element types."""

from __future__ import annotations

from planner.graph.ir import Dtype

SAFETENSORS_DTYPES = {
    "F64": Dtype.FLOAT64,
    "F32": Dtype.FLOAT32,
    "F16": Dtype.FLOAT16,
    "BF16": Dtype.BFLOAT16,
    "F8_E4M3": Dtype.FLOAT8_E4M3FN,
    "F8_E5M2": Dtype.FLOAT8_E5M2,
    "I64": Dtype.INT64,
    "I32": Dtype.INT32,
    "I16": Dtype.INT16,
    "I8": Dtype.INT8,
    "U8": Dtype.UINT8,
    "BOOL": Dtype.BOOL,
    "C64": Dtype.COMPLEX64,
}
