"""What the subjects that return torch tensors share."""

import torch
from protocol import digest

NAMES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16",
    torch.int16: "I16", torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64",
    torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
    torch.float64: "F64", torch.complex64: "C64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ", torch.float8_e8m0fnu: "F8_E8M0",
    torch.float4_e2m1fn_x2: "F4",
}  # fmt: skip


def bytes_of(tensor):
    """Returns a tensor's bytes."""
    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def described(tensor):
    """Returns [dtype, shape, digest]."""
    shape = list(tensor.shape)
    if tensor.dtype == torch.float4_e2m1fn_x2 and shape:
        shape[-1] *= 2
    return [NAMES[tensor.dtype], shape, digest(bytes_of(tensor))]
