"""Measures how much memory of a device is free."""

import os
from pathlib import Path

import torch

_SYSTEM = Path("/proc/meminfo")
_CONTAINER = Path("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a GPU, or that this process may still take of the main memory."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return min(_system_bytes(), _container_bytes())


def free_cached_memory(device: torch.device) -> None:
    """Give the memory back that torch keeps of tensors that are gone, so that larger ones fit."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _system_bytes() -> int:
    """Return what the system has; where it does not say what is free (macOS), half of all."""
    if not _SYSTEM.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    kilobytes = dict(line.split(":") for line in _SYSTEM.read_text(encoding="ascii").splitlines())
    return 1024 * int(kilobytes["MemAvailable"].split()[0])


def _container_bytes() -> int:
    """Return what is left of the limit of the process's container; without one, more than any system has."""
    limit, used, parts = (_CONTAINER / f"memory.{name}" for name in ("max", "current", "stat"))
    if not parts.is_file() or not limit.is_file() or (most := limit.read_text(encoding="ascii").strip()) == "max":
        return 1 << 62
    sizes = dict(line.split() for line in parts.read_text(encoding="ascii").splitlines())
    files = int(sizes["active_file"]) + int(sizes["inactive_file"])  # copies of files, which the system drops
    return max(0, int(most) - int(used.read_text(encoding="ascii")) + files)
