"""What torch's functions, tensors' methods and containers' do that no schema says, by name."""

from __future__ import annotations

import operator

# Draw by an operator with another name, which their own names do not tell.
DRAWING_FUNCTIONS = frozenset(
    {
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "fractional_max_pool2d_with_indices",
        "fractional_max_pool3d_with_indices",
        "gumbel_softmax",
        "multi_head_attention_forward",
    }
)

# Out of training, or with probability 0, each returns its argument itself.
DROPOUTS = frozenset(
    {
        "alpha_dropout",
        "dropout",
        "dropout1d",
        "dropout2d",
        "dropout3d",
        "feature_alpha_dropout",
        "feature_dropout",
        "native_dropout",
    }
)

# Composites that may return their first argument, or views of it, and that graphs do not hold.
UNDECLARED_VIEWS = frozenset({"align_tensors", "atleast_3d", "sum_to_size"})

# Return a view whatever their argument holds and however it lies, so they read nothing of it.
VIEWS = frozenset(
    {
        "alias",
        "chunk",
        "detach",
        "diagonal",
        "expand",
        "expand_as",
        "movedim",
        "narrow",
        "permute",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "transpose",
        "unbind",
        "unfold",
        "unsqueeze",
        "view",
        "view_as",
    }
)

# Change the shape of the tensor that they are called on, so that a view made before is not one made after.
RESHAPING_WRITES = frozenset(
    {
        "as_strided_",
        "detach_",
        "requires_grad_",
        "resize_",
        "resize_as_",
        "set_",
        "squeeze_",
        "swapaxes_",
        "swapdims_",
        "t_",
        "transpose_",
        "unsqueeze_",
    }
)

CONTAINER_WRITES = frozenset(
    {"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update", "__setitem__"}
)

# Views and conversions that are no aten operator of that name.
UNDECLARED_METHODS = frozenset(
    {
        "__getitem__",
        "bfloat16",
        "bool",
        "byte",
        "char",
        "cpu",
        "cuda",
        "data_ptr",
        "double",
        "float",
        "get",
        "half",
        "int",
        "items",
        "long",
        "short",
        "type",
        "values",
    }
)

OPERATOR_WRITES = frozenset(
    {
        operator.delitem,
        operator.iadd,
        operator.iand,
        operator.iconcat,
        operator.ifloordiv,
        operator.ilshift,
        operator.imatmul,
        operator.imod,
        operator.imul,
        operator.ior,
        operator.ipow,
        operator.irshift,
        operator.isub,
        operator.itruediv,
        operator.ixor,
        operator.setitem,
    }
)

# Attributes that are no view of the tensor they belong to.
METADATA = frozenset(
    {
        "device",
        "dtype",
        "is_cuda",
        "is_sparse",
        "itemsize",
        "layout",
        "names",
        "ndim",
        "nbytes",
        "requires_grad",
        "shape",
    }
)
