"""How much memory this process may still take."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
"""Of a container under cgroup v2."""


def available_memory(cgroup: Path = CGROUP) -> int:
    """Bytes: what the machine has free, or what is left of the container's limit if that is less."""
    machine = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
        used = int((cgroup / "memory.current").read_text(encoding="ascii"))
        statistics = (cgroup / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return machine
    if limit == "max":
        return machine
    # Files that were read, such as checkpoints, count as used until somebody needs the room.
    cached = next((int(line.split()[1]) for line in statistics.splitlines() if line.startswith("inactive_file ")), 0)
    return max(min(machine, int(limit) - used + cached), 0)
