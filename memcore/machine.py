"""This machine's own GPUs or unified memory, asked from its driver tool or operating system.

What is here is the machine that runs this code. The page offers it only to someone who opened it from that very machine
(`is_local`): on a hosted page it would be the host's.
"""

from __future__ import annotations

import ipaddress
import platform
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from . import catalog
from .catalog import Device
from .units import GiB, KiB, MiB

TIMEOUT_SECONDS = 2
NVIDIA_SMI = ("nvidia-smi", "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits")
UNIFIED_NVIDIA = ("GB10", "Thor", "Orin")
"""GPUs that share the machine's RAM and of which nvidia-smi reports no memory."""

BUSY_BELOW = 0.95
"""Free memory below this share of what a run may take is worth saying."""

LOOPBACK_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")

Ask = Callable[[tuple[str, ...]], str]


@dataclass(frozen=True, kw_only=True)
class Own:
    """A GPU of this machine, or its unified memory."""

    device: Device
    """As in the catalog where it is listed, else by the driver's figures."""
    total_bytes: float
    free_bytes: float | None
    """What nobody uses at the moment; None where the system does not say."""

    @property
    def is_busy(self) -> bool:
        """Others use so much of it that a run gets less than it could."""
        return self.free_bytes is not None and self.free_bytes < BUSY_BELOW * self.device.usable_bytes


def distinct(found: list[Own]) -> list[Own]:
    """Each kind of device once: of several alike, the one with least memory free."""
    kept: dict[str, Own] = {}
    for own in found:
        known = kept.get(own.device.label)
        if known is None or (own.free_bytes or 0) < (known.free_bytes or 0):
            kept[own.device.label] = own
    return list(kept.values())


def free_device(own: Own) -> Device:
    """What is free as a device of its own. The system's share is in use already, so none is left for it again."""
    return catalog.custom_device(f"{own.free_bytes / GiB:.1f}", "GiB", unified=False)


def own_devices(ask: Ask | None = None, meminfo: str | None = None, system: str = "") -> list[Own]:
    """The GPUs of this machine, or its unified memory; empty where there is none or nothing answers."""
    ask = ask or _run
    system = system or f"{platform.system()} {platform.machine()}"
    if system == "Darwin arm64":
        return _mac(ask)
    found = []
    for line in ask(NVIDIA_SMI).splitlines():
        if (own := _nvidia(line, meminfo)) is not None:
            found.append(own)
    return found


def _nvidia(line: str, meminfo: str | None) -> Own | None:
    """One line of nvidia-smi: name, MiB in all, MiB free. Figures may be "[N/A]"."""
    parts = [part.strip() for part in line.rsplit(",", 2)]
    if len(parts) != 3 or not parts[0]:
        return None
    name, total, free = parts[0], _mib(parts[1]), _mib(parts[2])
    if total is None:
        if not any(word in name for word in UNIFIED_NVIDIA):
            return None
        total, free = _ram(meminfo)
        if total is None:
            return None
        return Own(device=_device(name, total, unified=True), total_bytes=total, free_bytes=free)
    return Own(device=_device(name, total, unified=False), total_bytes=total, free_bytes=free)


def _mac(ask: Ask) -> list[Own]:
    """Unified memory of an Apple machine: the chip's name and RAM; free and inactive pages can be had."""
    total = re.fullmatch(r"\s*(\d{1,15})\s*", ask(("sysctl", "-n", "hw.memsize")))
    if not total or not int(total[1]):
        return []
    name = ask(("sysctl", "-n", "machdep.cpu.brand_string")).strip()[:60] or "Apple"
    pages = ask(("vm_stat",))
    size = re.search(r"page size of (\d{1,7}) bytes", pages)
    counts = [re.search(rf"^Pages {kind}:\s+(\d{{1,15}})\.", pages, re.MULTILINE) for kind in ("free", "inactive")]
    free = sum(int(count[1]) for count in counts) * float(size[1]) if size and all(counts) else None
    memory = float(total[1])
    return [Own(device=_device(name, memory, unified=True), total_bytes=memory, free_bytes=free)]


def _device(name: str, memory: float, unified: bool) -> Device:
    """The catalog's row of this name and memory, else a custom device with the driver's figure."""
    same = [d for d in catalog.devices().values() if d.driver_name == name and abs(d.memory_bytes - memory) <= 0.06 * memory]
    if same:
        return min(same, key=lambda device: (abs(device.memory_bytes - memory), device.kind == "cloud"))
    return replace(catalog.custom_device(memory / GiB, "GiB", unified), label=f"{name}, {memory / GiB:.1f} GiB")


def _mib(text: str) -> float | None:
    return int(text) * float(MiB) if re.fullmatch(r"\d{1,9}", text) and int(text) else None


def _ram(meminfo: str | None) -> tuple[float | None, float | None]:
    """Total and available bytes of /proc/meminfo."""
    if meminfo is None:
        try:
            meminfo = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None, None
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d{1,15}) kB$", meminfo, re.MULTILINE))
    total, available = (float(found[key]) * KiB if key in found else None for key in ("MemTotal", "MemAvailable"))
    return total, available


def _run(command: tuple[str, ...]) -> str:
    """What a command prints; nothing where it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def is_local(host: str | None, ip: str | None, headers: Mapping[str, str] | None = None) -> bool:
    """Whether a page was opened from the machine that serves it.

    Parameters
    ----------
    host : str or None
        The address in the browser's bar, as the Host header or a URL has it: a loopback name or address.
    ip : str or None
        Where the request came from; None or empty where the server calls it its own machine.
    headers : mapping
        The request's headers: one that a proxy adds means that somebody else may be at the other end.
    """
    names = {name.lower() for name in headers or {}}
    if names & {"forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "cf-connecting-ip", "true-client-ip"}:
        return False
    return _loopback(_hostname(host)) and (not ip or _loopback(ip))


def _hostname(host: str | None) -> str:
    """The name in "name:port", "[::1]:8501" or a URL."""
    text = (host or "").strip().lower()
    text = text.partition("://")[2] or text
    text = text.partition("/")[0].rpartition("@")[2]
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _loopback(name: str) -> bool:
    if name in LOOPBACK_NAMES:
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
