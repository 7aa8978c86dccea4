"""What to change where torch.export refuses a module: torch says what it met, seldom what in the model caused it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from torch import nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.rnn import PackedSequence

# What configs of transformers call it.
_NUMBERS_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
NO_NESTED_TENSORS = (
    "torch.export captures no nested tensors: give padded tensors and a mask, or values and offsets as two plain ones"
)
_PADDED = (
    "give recurrent layers padded batches, not packed sequences, whose steps are as many as data says, and mask what "
    "is behind each length"
)
# Words of torch's messages about what torch.export does not capture.
_NOT_CAPTURED = (
    (
        re.compile(r"UninitializedParameter"),
        "call it once on a batch: its lazy parameters have no sizes before",
    ),
    (
        re.compile(r"fake tensor in the exported program constant"),
        "it reads or writes a tensor's .data, or asks for gradients (torch.autograd.grad): read its detach(), write "
        "under torch.no_grad(), and leave gradients to the training",
    ),
    (
        re.compile(r"BlockMask"),
        "create_block_mask in the forward, or before and keep it as an attribute: an input is a tensor, or a container "
        "of tensors",
    ),
    (re.compile(r"ScriptModule"), "export the Python module that it was scripted from"),
    (
        re.compile(r"classes\.quantized|PackedParams"),
        "its weights are packed by quantize_dynamic, convert or the like, which torch.export does not take: quantise "
        "the floating-point module with torchao's quantize_ instead (Int8WeightOnlyConfig), or keep int8 weights and "
        "their scales as buffers",
    ),
    (re.compile(r"nested_tensor|NestedTensor|NestedInt", re.IGNORECASE), NO_NESTED_TENSORS),
    (
        re.compile(r"quantized nyi|[Qq]uantizedCPU|\bq(u?)int\d+\b"),
        "it holds a quantised tensor, which torch.export does not take: keep its int_repr() and its scales as buffers",
    ),
)
_OF_SEVERAL_PROCESSES = ("DistributedDataParallel", "FullyShardedDataParallel")
_LINE_THAT_ASKS = re.compile(r'raised this error:\s*File "([^"]+)", line (\d+), in (\S+)\n([^\n]*)')
_CACHE = re.compile(r"Found <class '[\w.]*?(\w*Cache)'> in output")


def remedy(error: Exception, module: nn.Module) -> str:
    """A sentence to put below torch's message."""
    wrapper = next((kind for part in module.modules() if (kind := type(part).__name__) in _OF_SEVERAL_PROCESSES), "")
    if wrapper:
        return f"export what {wrapper} wraps, its .module: a plan parts a model itself, and copies stages (replicate)"
    cache = _CACHE.search(str(error))
    if cache is not None:
        return (
            f"the model returns a {cache[1]}, which grows from call to call; set use_cache=False, "
            "in its config, in that of its decoder, or among the inputs"
        )
    if _goes_through_a_packed_sequence(error):
        return _PADDED
    for words, change in _NOT_CAPTURED:
        if words.search(str(error)):
            return change
    fixing = list(_lines_that_fix_a_size(error))
    if fixing:
        return f"{'; '.join(fixing)}; leave that dimension out of dynamic_shapes, or change that line"
    return "change the module's forward, or its dynamic_shapes, as the message says"


def line_that_asks(error: Exception) -> str:
    """ " at modeling_detr.py:643 in forward, 'if not x.isfinite().all():'": the line that torch blames, if any."""
    line = _LINE_THAT_ASKS.search(str(error))
    return "" if line is None else f" at {PurePath(line[1]).name}:{line[2]} in {line[3]}, {line[4].strip()!r}"


def remedy_for_data(error: Exception, module: nn.Module) -> str:
    """Where a branch or a size depends on what a tensor holds."""
    if _goes_through_a_packed_sequence(error):
        return _PADDED
    for name, part in module.named_modules():
        if isinstance(part, _BatchNorm) and part.momentum is None and part.training:
            return f"{name!r} averages over all batches so far (momentum=None), which torch counts: give it a momentum"
    config = getattr(module, "config", None)
    implementation = getattr(config, "_experts_implementation", None)
    has_experts = any(hasattr(config, name) for name in _NUMBERS_OF_EXPERTS)
    if has_experts and implementation not in (None, "grouped_mm", "batched_mm"):
        return (
            f"its experts run one by one, as many as the data chooses (experts_implementation={implementation!r}): "
            'build the model with experts_implementation="grouped_mm"'
        )
    return "write it with torch.where or torch.cond, or state the range with torch._check"


def _lines_that_fix_a_size(error: Exception) -> Iterator[str]:
    """ "torch fixes s70 to 7 because of modeling_mamba.py:260 in mamba_selective_scan", for each dimension so fixed."""
    if "specialized" not in str(error):
        return
    for shape_env in _shape_envs(error):
        for symbol, line in shape_env.replacements_slocs.items():
            size = shape_env.replacements.get(symbol)
            if size is not None and size.is_number:
                yield f"torch fixes a size ({symbol}) to {size} because of {str(line).strip('()')}"


def _shape_envs(error: BaseException) -> Iterator[ShapeEnv]:
    """Those in the frames that the error came through, each once."""
    held = (value for variables in _variables(error) for value in variables.values() if isinstance(value, ShapeEnv))
    yield from {id(value): value for value in held}.values()


def _goes_through_a_packed_sequence(error: BaseException) -> bool:
    """Recurrent layers keep what they were called with as `orig_input`."""
    return any(isinstance(variables.get("orig_input"), PackedSequence) for variables in _variables(error))


def _variables(error: BaseException) -> Iterator[dict[str, Any]]:
    """Of each frame that the error, or one that it was raised from, came through."""
    raised: BaseException | None = error
    while raised is not None:
        traceback: Any = raised.__traceback__
        while traceback is not None:
            yield dict(traceback.tb_frame.f_locals)
            traceback = traceback.tb_next
        raised = raised.__context__
