import torch as torch

AnyDevice = str | int | torch.device | None
