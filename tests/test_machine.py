"""This machine's memory as its tools print it, and who may see it."""

import subprocess

import pytest

import memcore
from memcore import machine
from memcore.machine import is_local, own_devices
from memcore.units import GiB, MiB

MEMINFO = "MemTotal:       125513676 kB\nMemFree:        90000000 kB\nMemAvailable:   110000000 kB\n"
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               100000.
Pages active:                             500000.
Pages inactive:                           400000.
Pages speculative:                          9000.
"""


def tool(**answers):
    """A stand-in for the machine's commands: their answers by name."""
    return lambda command: answers.get(command[0].replace("-", "_"), answers.get(command[-1].replace(".", "_"), ""))


def test_each_gpu_is_found_in_the_catalog_with_what_is_free():
    lines = "NVIDIA GeForce RTX 4090, 24564, 23900\nNVIDIA H100 80GB HBM3, 81559, 81008\n"
    card, big = own_devices(tool(nvidia_smi=lines), system="Linux x86_64")
    assert card.device is memcore.devices()["NVIDIA GeForce RTX 4090"]
    assert (card.total_bytes, card.free_bytes) == (24564 * MiB, 23900 * MiB)
    assert big.device.name == "NVIDIA H100 80GB HBM3"


def test_of_several_cards_of_one_name_the_one_with_that_memory():
    (own,) = own_devices(tool(nvidia_smi="NVIDIA GeForce RTX 3060, 12288, 12000"), system="Linux x86_64")
    assert own.device.name == "NVIDIA GeForce RTX 3060 12GB"


def test_a_card_nobody_listed_has_what_its_driver_says():
    (own,) = own_devices(tool(nvidia_smi="NVIDIA Quux 9000, 40000, 39000"), system="Linux x86_64")
    assert own.device.kind == "custom" and own.device.label.startswith("NVIDIA Quux 9000")
    assert own.device.memory_bytes == pytest.approx(40000 * MiB)
    assert own.device.usable_bytes < own.device.memory_bytes


def test_unified_memory_of_an_nvidia_machine_is_its_ram():
    (own,) = own_devices(tool(nvidia_smi="NVIDIA GB10, [N/A], [N/A]"), MEMINFO, "Linux aarch64")
    assert own.device.unified
    assert own.total_bytes == 125513676 * 1024
    assert own.free_bytes == 110000000 * 1024


def test_a_mac_is_its_chip_and_ram():
    ask = tool(hw_memsize=str(36 * GiB), machdep_cpu_brand_string="Apple M3 Max\n", vm_stat=VM_STAT)
    (own,) = own_devices(ask, system="Darwin arm64")
    assert own.device.name == "Apple M3 Max 36GB"
    assert own.free_bytes == 500000 * 16384


def test_an_unlisted_mac_gives_three_quarters():
    (own,) = own_devices(tool(hw_memsize=str(40 * GiB), machdep_cpu_brand_string="Apple M9"), system="Darwin arm64")
    assert own.device.usable_bytes == 30 * GiB
    assert own.free_bytes is None


@pytest.mark.parametrize(
    "output",
    [
        "",
        "\n\n",
        "No devices were found",
        "NVIDIA A100, [N/A], [N/A]",
        "a, b",
        "x, 0, 0",
        ", 100, 50",
        "NVIDIA X, 99999999999999999, 1",
        "é, -5, 3",
    ],
)
def test_nonsense_is_no_device(output):
    assert own_devices(tool(nvidia_smi=output), MEMINFO, "Linux x86_64") == []
    assert own_devices(tool(hw_memsize=output), system="Darwin arm64") == []


@pytest.mark.parametrize("error", [FileNotFoundError(), PermissionError(), subprocess.TimeoutExpired("nvidia-smi", 2)])
def test_a_missing_or_hanging_tool_is_no_device(monkeypatch, error):
    def fail(*arguments, **options):
        assert options["timeout"] <= 5
        raise error

    monkeypatch.setattr(machine.subprocess, "run", fail)
    assert own_devices(system="Linux x86_64") == []


def test_this_machine_answers_without_an_error():
    for own in own_devices():
        assert own.total_bytes > 0 and own.device.usable_bytes > 0


@pytest.mark.parametrize(
    ("host", "ip", "headers", "expected"),
    [
        ("localhost:8501", "127.0.0.1", {}, True),
        ("http://localhost:8501/?model=x", None, {}, True),
        ("127.0.0.1:8501", "", {}, True),
        ("[::1]:8501", "::1", {}, True),
        ("LOCALHOST", "::ffff:127.0.0.1", {}, True),
        ("localhost:8501", "192.168.1.7", {}, False),  # another machine says it asks for localhost
        ("192.168.1.5:8501", "192.168.1.7", {}, False),
        ("memcore.example.com", "127.0.0.1", {}, False),  # a proxy on the host
        ("localhost.example.com", None, {}, False),
        ("127.0.0.1.example.com", None, {}, False),
        ("http://localhost@example.com/", None, {}, False),
        ("localhost:8501", "127.0.0.1", {"X-Forwarded-For": "203.0.113.9"}, False),
        ("localhost:8501", "127.0.0.1", {"x-real-ip": "203.0.113.9"}, False),
        (None, None, None, False),
        ("", "127.0.0.1", {}, False),
    ],
)
def test_only_who_opens_the_page_on_the_machine_itself_sees_it(host, ip, headers, expected):
    assert is_local(host, ip, headers) is expected
