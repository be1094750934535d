"""Which device a runtime computes on."""

import torch

from services.engine.runtime.errors import DeviceMissingError


def find_device(asked: str) -> torch.device:
    """The device that ``asked`` names: cpu, cuda, cuda:N, or auto: the first CUDA device, else the CPU.

    Raises DeviceMissingError where CUDA is asked for and not there.
    """
    if asked == "cpu":
        return torch.device("cpu")
    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "auto":
        return torch.device("cuda", 0) if num_devices else torch.device("cpu")
    if not num_devices:
        built = "finds no CUDA device" if torch.version.cuda else "is a build without CUDA"
        raise DeviceMissingError(f"torch {torch.__version__} {built}")
    index = torch.device(asked).index or 0
    if index >= num_devices:
        raise DeviceMissingError(f"there is no such device: torch finds {num_devices}, the first is cuda:0")
    return torch.device("cuda", index)
