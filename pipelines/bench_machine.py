"""What a benchmark ran on."""

import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

# Variables that make the same code faster or slower.
_SETTINGS = (
    "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS",
    "OMP_NUM_THREADS",
)  # fmt: skip


def machine() -> dict[str, Any]:
    """`processor`, `cores` and `python` version of this machine, and `settings` of its libraries.

    The last are those environment variables that are set and change how fast TensorFlow is.
    """
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text("utf-8"), re.MULTILINE)
        name = name if match is None else match[1]
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "settings": {name: os.environ[name] for name in _SETTINGS if name in os.environ},
    }


def described(machine: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """What `machine` and `versions` found, as the end of a sentence.

    Args:
        machine: What `machine` gives.
        versions: What `versions` gives.

    Returns:
        Such as `2 cores of AMD EPYC, Python 3.11.7; tensorflow 2.21.0`.
    """
    parts = [f"{machine['cores']} cores of {machine['processor']}", f"Python {machine['python']}"]
    parts += [f"{name}={value}" for name, value in machine["settings"].items()]
    return (
        ", ".join(parts) + "; " + ", ".join(f"{name} {number}" for name, number in versions.items())
    )


def versions(distributions: Sequence[str]) -> dict[str, str]:
    """The versions of those distributions that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
