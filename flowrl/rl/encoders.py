"""Observations as one vector of numbers each, in torch: images through convolutions, the rest flat or one-hot."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from flowrl.rl.observations import Leaf, ObsLayout, channels_first, image_size
from flowrl.rl.spec import PolicySpec

Convolutions = Sequence[tuple[int, int, int]]
# (channels, kernel, stride) and the width behind them, from 36 pixels a side (Mnih et al., Nature 2015)
NATURE: Convolutions = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
NATURE_SIDE, NATURE_FEATURES, SMALL_FEATURES = 36, 512, 128
SMALL_SIDE = 8


class Encoder(nn.Module):
    """Observations (B, ...), a tensor or a dict of tensors by path, to features (B, `features`).

    Numbers and bits are flattened, indices become one-hot, images (uint8 or bool, rank 3) are divided by their
    upper bound and go through convolutions and one layer, each with ReLU; the parts follow one another in the
    layout's order. Parameters are left unset; without images there are none.
    """

    def __init__(self, spec: PolicySpec, layout: ObsLayout):
        super().__init__()
        self._leaves, self._nested = layout.leaves, layout.nested
        self.images = nn.ModuleList(ImageEncoder(spec, leaf) for leaf in layout.images)
        flat = sum(leaf.size for leaf in layout.leaves if leaf.kind != "image")
        self.features: int = flat + sum(image.features for image in self._images())

    def _images(self) -> list[ImageEncoder]:
        return [image for image in self.images if isinstance(image, ImageEncoder)]

    def forward(self, obs: Tensor | Mapping[str, Tensor]) -> Tensor:
        """The features (B, features)."""
        images = iter(self._images())
        parts = []
        for leaf in self._leaves:
            x = obs if isinstance(obs, Tensor) else obs[leaf.path]
            parts.append(next(images)(x) if leaf.kind == "image" else _flat(leaf, x))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class ImageEncoder(nn.Module):
    """Images (B, H, W, C) or (B, C, H, W), whichever has the shorter side for its channels, to features (B, F)."""

    def __init__(self, spec: PolicySpec, leaf: Leaf):
        super().__init__()
        self._first, self._scale = channels_first(leaf.shape), leaf.scale
        size = image_size(leaf.shape)
        convolutions = default_convolutions(size) if spec.convolutions is None else spec.convolutions
        channels = leaf.shape[0 if self._first else 2]
        widths = [channels, *(out for out, _, _ in convolutions)]
        self.convolutions = nn.ModuleList(
            nn.utils.skip_init(nn.Conv2d, into, out, kernel, stride)
            for (into, out), (_, kernel, stride) in zip(itertools.pairwise(widths), convolutions, strict=True)
        )
        height, width = convolved(size, convolutions)
        default = NATURE_FEATURES if min(size) >= NATURE_SIDE else SMALL_FEATURES
        self.features = spec.image_features or default
        self.linear = nn.utils.skip_init(nn.Linear, widths[-1] * height * width, self.features)

    def forward(self, x: Tensor) -> Tensor:
        """The features (B, F)."""
        x = x.to(torch.float32) / self._scale
        x = x if self._first else x.permute(0, 3, 1, 2)
        for convolution in self.convolutions:
            x = torch.relu(convolution(x))
        return torch.relu(self.linear(x.flatten(1)))


def default_convolutions(size: tuple[int, int]) -> Convolutions:
    """The convolutions for images of this height and width.

    From 36 pixels a side the three of the Nature paper; below, 3 × 3 ones: 16 channels of stride 1, then 32 of
    stride 2 as long as a side is above 8.
    """
    if min(size) >= NATURE_SIDE:
        return NATURE
    layers = [(16, 3, 1)]
    while True:
        now = convolved(size, layers)
        if max(now) <= SMALL_SIDE or min(now) < 3:
            return layers
        layers.append((32, 3, 2))


def convolved(size: tuple[int, int], convolutions: Convolutions) -> tuple[int, int]:
    """Height and width of what the convolutions give.

    Raises:
        ValueError: the image is smaller than a kernel.
    """
    height, width = size
    for place, (_, kernel, stride) in enumerate(convolutions):
        if min(height, width) < kernel:
            raise ValueError(
                f"convolution {place} of {list(convolutions)} has a kernel of {kernel} pixels and gets an image of "
                f"{height} × {width} (the observation is {size[0]} × {size[1]}); set PolicySpec(convolutions=...)"
            )
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return height, width


def _flat(leaf: Leaf, x: Tensor) -> Tensor:
    rows = len(x)
    if leaf.kind != "one_hot":
        return x.reshape(rows, -1).to(torch.float32)
    shifted = x.reshape(rows, -1).long() - torch.tensor(leaf.start)
    starts = torch.tensor([0, *itertools.accumulate(leaf.choices[:-1])])
    if bool(((shifted < 0) | (shifted >= torch.tensor(leaf.choices))).any()):
        raise ValueError(f"observation {leaf.column!r} holds an index outside its space of {leaf.choices} values")
    return torch.zeros(rows, leaf.size).scatter_(1, shifted + starts, 1.0)
