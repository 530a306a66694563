"""The peak memory of a process, for benchmarks that measure each part in its own process."""

from pathlib import Path


def peak_megabytes() -> float:
    """The peak resident memory of this process alone, in MiB (Linux); `resource` includes that of its parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024
