"""A U-Net (Ronneberger et al. 2015): every level's features skip over all the deeper ones."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim

from tests.builders.case import Batch, Case
from tests.builders.images import image_batch


class DoubleConvolution(nn.Sequential):
    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels, out_channels, 3, padding=1),
            nn.GroupNorm(2, out_channels),
            nn.SiLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, 3, padding=1),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.entry = DoubleConvolution(3, widths[0])
        self.down = nn.ModuleList(DoubleConvolution(widths[i], widths[i + 1]) for i in range(depth))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(widths[i + 1], widths[i], 2, stride=2) for i in reversed(range(depth))
        )
        self.merge = nn.ModuleList(DoubleConvolution(2 * widths[i], widths[i]) for i in reversed(range(depth)))
        self.exit = nn.Conv2d(width, 1, 1)

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.entry(images)
        skips = []
        for down in self.down:
            skips.append(features)
            features = down(nn.functional.max_pool2d(features, 2))
        for up, merge in zip(self.up, self.merge, strict=True):
            features = merge(torch.cat([skips.pop(), up(features)], dim=1))
        mask = self.exit(features)
        return {"mask": mask, "probability": torch.sigmoid(mask)}


def unet(*, train: bool = False, width: int = 4, depth: int = 3) -> Case:
    torch.manual_seed(0)
    return Case(
        module=UNet(width, depth).train(train),
        args=(image_batch(2, 32),),
        dynamic_shapes=({0: Dim("batch", min=1, max=1024)},),
        other_batches=tuple(Batch(args=(image_batch(batch, 32),)) for batch in (1, 4)),
    )
