"""What the fused kernels compute, in plain PyTorch: channels last, each model alone."""

import torch
from torch.nn import functional as F


class PlainConvolution:
    """What `fedgram.nets.fused_convolution` computes."""

    @staticmethod
    def convolve(x, weight, stride, padding):
        assert x.is_contiguous()
        assert weight.is_contiguous()
        pairs = zip(first(x), first(weight), strict=True)
        return last([F.conv2d(a, b, stride=stride, padding=padding) for a, b in pairs])

    @staticmethod
    def convolve_data(slope, weight, size, stride, padding):
        shape = (slope.shape[1], weight.shape[4], *size)
        pairs = zip(first(slope), first(weight), strict=True)
        return last([torch.nn.grad.conv2d_input(shape, b, a, stride, padding) for a, b in pairs])

    @staticmethod
    def convolve_weight(slope, x, kernel, stride, padding):
        shape = (slope.shape[4], x.shape[4], *kernel)
        pairs = zip(first(slope), first(x), strict=True)
        return last([torch.nn.grad.conv2d_weight(b, shape, a, stride, padding) for a, b in pairs])


class PlainPooling:
    """What `fedgram.nets.fused_pooling` computes."""

    @staticmethod
    def select(x, weight, kernel, stride, padding):
        sign = torch.where(weight < 0, -1.0, 1.0).to(x.dtype)[:, None, :, None, None]
        pooled = [
            F.max_pool2d(value, kernel, stride, padding, return_indices=True) for value in sign * first(x)
        ]
        indices = torch.stack([each for _, each in pooled])
        top, left = corners(indices.shape, stride, padding)
        width = x.shape[3]
        taps = (indices // width - top) * kernel + indices % width - left
        return last(sign * torch.stack([each for each, _ in pooled])), last(taps.to(torch.int8))

    @staticmethod
    def unselect(slope, taps, x, offset, factor, kernel, stride, padding):
        top, left = corners(first(taps).shape, stride, padding)
        place = first(taps).long()
        indices = (top + place // kernel) * x.shape[3] + left + place % kernel
        sums = x.new_zeros(*first(x).shape[:3], x.shape[2] * x.shape[3])
        sums.scatter_add_(3, indices.flatten(3), first(slope).flatten(3))
        wide = (slice(None), None, None, None)
        return (offset[wide] + factor[wide] * x + last(sums.unflatten(3, x.shape[2:4]))).contiguous()


def corners(shape, stride, padding):
    """Rows and columns at which windows (..., H', W') begin."""
    top, left = (torch.arange(size) * stride - padding for size in shape[-2:])
    return top[:, None], left


def first(value):
    """Channels first: (K, N, H, W, C) -> (K, N, C, H, W)."""
    return value.permute(0, 1, 4, 2, 3)


def last(values):
    """Channels last, in memory, too."""
    whole = torch.stack(values) if isinstance(values, list) else values
    return whole.permute(0, 1, 3, 4, 2).contiguous()
