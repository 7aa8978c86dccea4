"""ViT: image patches as tokens, one class token in front."""

from __future__ import annotations

import torch
from torch.export import Dim

from tests.builders.case import Batch, Case
from tests.builders.images import image_batch


def vit(*, train: bool = False, layers: int = 2, width: int = 32) -> Case:
    # Imported here, since it takes seconds that only a test which builds one should wait for.
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=2 * width,
        num_attention_heads=4,
        image_size=16,
        patch_size=4,
        num_labels=5,
    )
    return Case(
        module=ViTForImageClassification(config).train(train),
        kwargs={"pixel_values": image_batch(2, 16)},
        dynamic_shapes={"pixel_values": {0: Dim("batch", min=1, max=1024)}},
        other_batches=tuple(Batch(kwargs={"pixel_values": image_batch(batch, 16)}) for batch in (1, 5)),
    )
