"""ResNet-50 (He et al. 2015, table 1): bottleneck blocks with in-place activations and batch normalisation."""

from __future__ import annotations

import torch
from torch import nn
from torch.export import Dim

from tests.builders.case import Batch, Case
from tests.builders.images import image_batch

_EXPANSION = 4


class Bottleneck(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * _EXPANSION, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width * _EXPANSION)
        self.activation = nn.ReLU(inplace=True)
        self.shortcut = _shortcut(channels, width * _EXPANSION, stride)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        inner = self.activation(self.norm1(self.conv1(features)))
        inner = self.activation(self.norm2(self.conv2(inner)))
        inner = self.norm3(self.conv3(inner))
        inner += self.shortcut(features)
        return self.activation(inner)


class ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.layers = nn.ModuleList()
        channels = width
        for index, count in enumerate(blocks):
            stage_width = width * 2**index
            layer = [Bottleneck(channels, stage_width, 1 if index == 0 else 2)]
            channels = stage_width * _EXPANSION
            layer += [Bottleneck(channels, stage_width, 1) for _ in range(count - 1)]
            self.layers.append(nn.Sequential(*layer))
        self.head = nn.Linear(channels, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.stem(images)
        for layer in self.layers:
            features = layer(features)
        return self.head(torch.flatten(nn.functional.adaptive_avg_pool2d(features, 1), 1))


def _shortcut(channels: int, out_channels: int, stride: int) -> nn.Module:
    if channels == out_channels and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out_channels, 1, stride=stride, bias=False), nn.BatchNorm2d(out_channels))


def resnet50(*, train: bool = False, width: int = 4) -> Case:
    """All 50 layers; `width` is the stem's, 64 in the paper."""
    torch.manual_seed(0)
    return Case(
        module=ResNet((3, 4, 6, 3), width, classes=10).train(train),
        args=(image_batch(2, 64),),
        dynamic_shapes=({0: Dim("batch", min=2 if train else 1, max=1024)},),
        other_batches=tuple(Batch(args=(image_batch(batch, 64),)) for batch in (2 if train else 1, 3)),
    )
