"""Models of transformers on the meta device, and where a checkpoint stores what they hold."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from planner.client.export.cached_model import CachedModel
from planner.client.export.checkpoint import CacheSize
from planner.client.export.dtypes import dtype_of
from planner.client.export.export import export
from planner.client.export.exported_model import ExportedModel
from planner.client.weight_layout import FileRange, TensorSource
from planner.errors import InvalidArgument, NotFound, PlannerWarning, UnsupportedModule

# Any sizes that no dimension of a model is likely to have.
_BATCH, _LENGTH, _TARGET_LENGTH = 2, 7, 5
# What checkpoints of earlier versions store, and modules compute.
_COMPUTED = (r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$")
_NAMED = 3
# Sent again and again for what is longer.
_ZEROS = bytes(1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaModel:
    """`buffers` are what its code computes from the config, by name: no checkpoint stores all of them. With a `cache`
    the module that keeps it, around this one, is what is exported."""

    module: Any
    buffers: Mapping[str, torch.Tensor]
    cache: CachedModel | None = None

    def sources(self, stored: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
        """Where the states are, by their own names: in the checkpoint as transformers maps it, or among the buffers.
        Warns of what is stored for nothing, as where the config has fewer layers."""
        computed = {name: _source_of(tensor, name) for name, tensor in self.buffers.items()}
        return computed | {name: _joined(name, parts) for name, parts in self._parts(stored).items()}

    def exported_sources(self, sources: Mapping[str, TensorSource]) -> dict[str, TensorSource]:
        """By the names that the exported states have; a cache begins empty."""
        if self.cache is None:
            return dict(sources)
        inside = {f"{CachedModel.PREFIX}{name}": source for name, source in sources.items()}
        return inside | {name: _zeros(tensor, name) for name, tensor in self.cache.buffers()}

    def check(self, sources: Mapping[str, TensorSource], folder: Path) -> None:
        """Raises NotFound for a state that is nowhere, InvalidArgument for one that is stored otherwise."""
        names: dict[int, list[str]] = {}
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            names.setdefault(id(tensor), []).append(name)
            source = sources.get(name)
            dtype, dims = dtype_of(tensor.dtype, name), tuple(tensor.shape)
            if source is not None and (source.dtype, source.dims) != (dtype, dims):
                raise InvalidArgument(
                    f"{folder}: {name!r} is stored as {source.dtype.value} {list(source.dims)}, the model needs "
                    f"{dtype.value} {list(dims)}; load it with from_pretrained, and submit the module itself"
                )
        for tied in names.values():
            if not any(name in sources for name in tied):
                raise NotFound(
                    f"{folder}: has no tensor for {tied[0]!r}; the checkpoint is of another model, or incomplete"
                )

    def _warn_of(self, unused: Sequence[str], count: int) -> None:
        known = (*(self.module._keys_to_ignore_on_load_unexpected or ()), *_COMPUTED)
        left = [name for name in unused if not any(re.search(pattern, name) for pattern in known)]
        if left:
            named = ", ".join(left[:_NAMED]) + (", ..." if len(left) > _NAMED else "")
            warnings.warn(
                f"{type(self.module).__name__} as config.json describes it has no use for {len(left)} of the"
                f" {count} stored tensors ({named}): they are left out",
                PlannerWarning,
                stacklevel=5,
            )

    def _parts(self, stored: Mapping[str, TensorSource]) -> dict[str, _Parts]:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

        mapping = get_model_conversion_mapping(self.module)
        renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        of_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
        needed, prefix = self.module.state_dict(), self.module.base_model_prefix
        parts: dict[str, _Parts] = {}
        unused: list[str] = []
        for key in sorted(stored, key=dot_natural_key):
            name, pattern = rename_source_key(key, renamings, converters, prefix, needed)
            if name not in needed and key in needed:
                name, pattern = rename_source_key(key, [], [], prefix, needed)
            if name not in needed:
                unused.append(key)
                continue
            operations = of_pattern[pattern].operations if pattern is not None else ()
            assembly = parts.setdefault(name, _Parts(operations=tuple(operations), columns={}))
            assembly.columns.setdefault(pattern, []).append(stored[key])
        self._warn_of(unused, len(stored))
        for name, assembly in parts.items():
            patterns = [pattern for pattern in assembly.columns if pattern is not None]
            if patterns:
                order = of_pattern[patterns[0]].source_patterns
                parts[name] = _Parts(
                    operations=assembly.operations,
                    columns={pattern: assembly.columns[pattern] for pattern in order if pattern in assembly.columns},
                )
        return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """What a state is made of: stored tensors, a column for each pattern in the order that `operations` join them."""

    operations: tuple[Any, ...]
    columns: dict[str | None, list[TensorSource]]


def build_on_meta(folder: Path, cache_size: CacheSize | None = None) -> MetaModel:
    """Raises InvalidArgument for a config that transformers has no model for, and as CachedModel.of."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{folder}: transformers makes nothing of its config.json ({error})") from error
    if getattr(config, "quantization_config", None) is not None:
        raise InvalidArgument(f"{folder}: its weights are quantised; load it with from_pretrained, submit the module")
    names = config.architectures or ["none"]
    kind = getattr(transformers, names[0], None)
    if kind is None:
        raise InvalidArgument(
            f"{folder}: config.json names the architecture {names[0]!r}, which this transformers "
            f"({transformers.__version__}) does not have; its code is not run, submit the module itself"
        )
    config.use_cache = config.get_text_config().use_cache = False
    with _parameters_on_meta():
        module = kind._from_config(config, dtype=config.dtype or torch.float32).eval()
        module.tie_weights()
    buffers = {name: tensor.clone() for name, tensor in module.named_buffers(remove_duplicate=False)}
    for part in module.modules():
        for name, tensor in part._buffers.items():
            if tensor is not None:
                part._buffers[name] = tensor.to("meta")
    return MetaModel(module=module, buffers=buffers, cache=CachedModel.of(module, cache_size) if cache_size else None)


def export_on_meta(model: MetaModel, name: str) -> ExportedModel:
    """With every size dynamic that the model lets be; with a cache, prompts and single tokens. Raises
    UnsupportedModule."""
    if model.cache is not None:
        inputs, shapes = model.cache.example()
        try:
            return export(model.cache.module, (), inputs, dynamic_shapes=shapes, name=name)
        except UnsupportedModule as error:
            kind = type(model.module).__name__
            raise UnsupportedModule(f"{kind} with a cache: {error.message}; submit it without one") from error
    module = model.module
    inputs, shapes = _example(module)
    try:
        return export(module, (), inputs, dynamic_shapes=shapes, name=name)
    except UnsupportedModule:
        automatic = {key: dict.fromkeys(dimensions, Dim.AUTO) for key, dimensions in shapes.items()}
        return export(module, (), inputs, dynamic_shapes=automatic, name=name)


@contextlib.contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Parameters that modules register meanwhile have no memory; buffers have. A tensor tied twice stays one."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def _example(module: Any) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, Any]]]:
    batch = Dim("batch", min=1, max=4096)
    if module.main_input_name == "input_ids":
        inputs = {"input_ids": _tokens(_LENGTH)}
        shapes = {"input_ids": {0: batch, 1: Dim("sequence", min=2, max=1 << 20)}}
        if module.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = _tokens(_TARGET_LENGTH)
            shapes["decoder_input_ids"] = {0: batch, 1: Dim("target", min=2, max=1 << 20)}
        return inputs, shapes
    if module.main_input_name == "pixel_values" and isinstance(getattr(module.config, "image_size", None), int):
        channels, size = getattr(module.config, "num_channels", 3), module.config.image_size
        pixels = torch.empty(_BATCH, channels, size, size, dtype=module.dtype, device="meta")
        return {"pixel_values": pixels}, {"pixel_values": {0: batch}}
    raise UnsupportedModule(
        f"{type(module).__name__}: what it takes ({module.main_input_name}) has no usual size; "
        "write a factory that returns the module and example inputs, and submit that"
    )


def _tokens(length: int) -> torch.Tensor:
    return torch.zeros(_BATCH, length, dtype=torch.int64, device="meta")


def _source_of(tensor: torch.Tensor, name: str) -> TensorSource:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return TensorSource(dtype=dtype_of(tensor.dtype, name), dims=tuple(tensor.shape), pieces=(content,))


def _zeros(tensor: torch.Tensor, name: str) -> TensorSource:
    whole, rest = divmod(tensor.numel() * tensor.element_size(), len(_ZEROS))
    pieces = (*[_ZEROS] * whole, *([_ZEROS[:rest]] if rest else []))
    return TensorSource(dtype=dtype_of(tensor.dtype, name), dims=tuple(tensor.shape), pieces=pieces)


def _joined(name: str, parts: _Parts) -> TensorSource:
    """Joins what transformers joins, where the bytes of the parts then stand one after the other."""
    names = [(type(operation).__name__, getattr(operation, "dim", None)) for operation in parts.operations]
    columns = list(parts.columns.values())
    first = columns[0][0]
    alike = all(part.dtype is first.dtype and part.dims[1:] == first.dims[1:] for column in columns for part in column)
    if not names and len(columns) == len(columns[0]) == 1:
        return first
    if alike and names == [("MergeModulelist", 0)] and len(columns) == 1:
        return _concatenated((len(columns[0]), *first.dims), columns[0])
    if alike and names == [("MergeModulelist", 0), ("Concatenate", 1)] and len({len(one) for one in columns}) == 1:
        rows = sum(column[0].dims[0] for column in columns)
        by_expert = [part for parts_of_one in zip(*columns, strict=True) for part in parts_of_one]
        return _concatenated((len(columns[0]), rows, *first.dims[1:]), by_expert)
    if alike and names == [("Concatenate", 0)] and all(len(column) == 1 for column in columns):
        rows = sum(column[0].dims[0] for column in columns)
        return _concatenated((rows, *first.dims[1:]), [column[0] for column in columns])
    done = ", ".join(operation for operation, _ in names) or "no operation"
    raise UnsupportedModule(
        f"{name!r} is made of {sum(map(len, columns))} stored tensors by {done}, more than putting bytes together; "
        "load it with from_pretrained, and submit the module itself"
    )


def _concatenated(dims: tuple[int, ...], parts: list[TensorSource]) -> TensorSource:
    pieces: tuple[FileRange | bytes, ...] = tuple(piece for part in parts for piece in part.pieces)
    return TensorSource(dtype=parts[0].dtype, dims=dims, pieces=pieces)
