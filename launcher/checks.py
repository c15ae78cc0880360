"""What a job needs of a machine, each as a check that may hang or crash: `doctor` runs each in a process of its own.

    python -m launcher.checks NAME ARGUMENT...

prints the finding as JSON. Only the standard library is imported up here: torch may be what is broken.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import os
import platform
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

OK, WARN, FAIL = "ok", "warn", "fail"
PORTS = (29400, 29500)  # the defaults of --rdzv-endpoint and --master-port
LEAST_TORCH = (2, 9)
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """`remedy`: what to do about it, empty if nothing has to be done."""

    level: str
    found: str
    remedy: str = ""


def ok(found: str) -> Finding:
    return Finding(level=OK, found=found)


def warn(found: str, remedy: str) -> Finding:
    return Finding(level=WARN, found=found, remedy=remedy)


def fail(found: str, remedy: str) -> Finding:
    return Finding(level=FAIL, found=found, remedy=remedy)


# -- the system -------------------------------------------------------------------------------------------------------


def system() -> Finding:
    found = f"{platform.system()} {platform.release()} on {platform.machine()}"
    if sys.platform != "linux":
        return fail(found, "elasticrun needs Linux; `python train.py` works here, as a world of one")
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        return fail(f"{found}, but processes cannot be watched: {error}", "Linux 5.3 or newer that permits pidfd_open")
    return ok(found)


def python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    return ok(found) if sys.version_info >= (3, 11) else fail(found, "Python 3.11 or newer is needed")


def torch() -> Finding:
    began = time.monotonic()
    try:
        import torch
    except Exception as error:  # whatever an import may raise is what is to be found out
        return fail(f"cannot be imported: {type(error).__name__}: {error}", f"install it for {sys.executable}")
    took_s = time.monotonic() - began
    found = f"{torch.__version__}, imported in {took_s:.1f} s"
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < LEAST_TORCH:
        return fail(found, f"torch {'.'.join(map(str, LEAST_TORCH))} or newer is needed")
    if took_s > 8.0:
        return warn(found, "every worker pays this when it starts: install it on a local disk")
    return ok(found)


def gloo() -> Finding:
    import torch
    from torch import distributed

    if not distributed.is_gloo_available():
        return fail("this torch has no gloo", "install a torch that was built with it")
    began = time.monotonic()
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(2)
    distributed.all_reduce(tensor)
    took_s = time.monotonic() - began
    if took_s > 1.0:
        return warn(
            f"works, but a group of one process took {took_s:.1f} s",
            "it looks up this machine's name: see host name and name lookup, or name the interface to use in "
            "GLOO_SOCKET_IFNAME",
        )
    return ok(f"works: a group of one process took {took_s * 1000:.0f} ms")


def shared_memory() -> Finding:
    try:
        space = os.statvfs("/dev/shm")
    except OSError as error:
        return warn(f"/dev/shm: {error.strerror}", "workers of a DataLoader need it: mount a tmpfs there")
    size, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    found = f"/dev/shm has {_bytes(free)} free of {_bytes(size)}"
    if free < 256 * MIB:
        return warn(found, "workers of a DataLoader need more: --shm-size=2g for a container, or remove what is there")
    return ok(found)


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} may be open (at most {hard if hard != resource.RLIM_INFINITY else 'any number'})"
    if soft < 4096:
        remedy = "a worker has a connection to each other one: ulimit -n 65536 before elasticrun"
        return (fail if soft < 256 else warn)(found, remedy)
    return ok(found)


def temporary_files() -> Finding:
    directory = tempfile.gettempdir()
    remedy = "name another directory in TMPDIR, or give elasticrun a --log-dir"
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(1 << 16))
            file.flush()
        space = os.statvfs(directory)
    except OSError as error:
        return fail(f"{directory} cannot be written to: {error.strerror}", remedy)
    free = space.f_bavail * space.f_frsize
    found = f"{directory} has {_bytes(free)} free"
    if free < 16 * MIB or (space.f_files and space.f_favail < 100):
        return fail(f"{found}, room for {space.f_favail} files", remedy)
    return warn(found, remedy) if free < GIB else ok(found)


def cores() -> Finding:
    mine = float(len(os.sched_getaffinity(0)))
    found = f"{mine:.0f} of {os.cpu_count()} for this process"
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max" and int(quota) / int(period) < mine:
            mine = int(quota) / int(period)
            found += f", limited to {mine:.1f} by its control group"
    except (OSError, ValueError):
        pass
    threads = os.environ.get("OMP_NUM_THREADS", "")
    found += f", OMP_NUM_THREADS={threads or '(unset: 1 for each of several workers)'}"
    if threads.isdigit() and int(threads) > mine:
        return warn(found, "threads of one worker wait for each other's cores: OMP_NUM_THREADS = cores / workers")
    return ok(found)


def clock() -> Finding:
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    if time.time() < Path(__file__).stat().st_mtime - 86400:
        return warn(f"it says {now}, which is before this was installed", "set it: times in journals are wrong")
    state = ctypes.create_string_buffer(512)  # struct timex, with nothing to be changed
    unsynchronised = 5
    if ctypes.CDLL(None).adjtimex(state) == unsynchronised:
        return warn(
            f"{now}, not kept by a time service",
            "membership never compares clocks, but the journals of several machines will not line up: start chrony or "
            "systemd-timesyncd",
        )
    return ok(f"{now}, kept by a time service")


# -- names and ports --------------------------------------------------------------------------------------------------


def host_name() -> Finding:
    name = socket.gethostname()
    remedy = f"give it an address that others reach in /etc/hosts, or start elasticrun with --local-addr ({name})"
    try:
        addresses = sorted({str(a[0]) for *_, a in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)})
    except OSError as error:
        return warn(f"{name} does not resolve: {error.strerror or error}", remedy)
    found = f"{name} is {', '.join(addresses)}"
    if all(is_loopback(address) for address in addresses):
        return warn(f"{found}: this machine only", f"fine for one node; for several, {remedy}")
    return ok(found)


def name_lookup(*hosts: str) -> Finding:
    """Of this machine's own address and of the endpoints': what torch does with both ends of each connection."""
    slow, quick = [], 0.0
    for host in dict.fromkeys((socket.gethostname(), *hosts)):
        try:
            address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4]
        except OSError:
            continue  # said by the check that is about it
        began = time.monotonic()
        try:
            socket.getnameinfo(address, 0)
        except OSError:
            pass  # no name: it is the time that matters
        took_s = time.monotonic() - began
        quick = max(quick, took_s)
        if took_s > 1.0:
            slow.append(f"{address[0]} takes {took_s:.1f} s")
    if slow:
        return warn(f"the name of {' and of '.join(slow)} to look up", SLOW_LOOKUP)
    return ok(f"names of addresses are looked up within {quick * 1000:.0f} ms")


SLOW_LOOKUP = (
    "torch's TCPStore looks up both ends of each connection (elasticrun does not, torchrun and scripts do): put the "
    "addresses into /etc/hosts, or repair /etc/resolv.conf"
)


def ports() -> Finding:
    taken = []
    for port in PORTS:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                taken.append(f"{port} is taken by {_listener(port)}")
    if taken:
        return warn("; ".join(taken), "another job on this machine needs another --rdzv-endpoint, or joins that one")
    return ok(" and ".join(map(str, PORTS)) + " are free")


def _listener(port: int) -> str:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _lines(table):
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            for descriptor in os.scandir(f"/proc/{process}/fd"):
                if os.readlink(descriptor.path) in inodes:
                    command = Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
                    return f"process {process}: {command[:80]}"
        except OSError:
            continue  # of another user, or gone
    return "a process that cannot be told"


def _lines(table: str) -> Iterator[str]:
    try:
        yield from Path(table).read_text().splitlines()[1:]
    except OSError:
        return


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _bytes(number: int) -> str:
    return f"{number / GIB:.1f} GiB" if number >= GIB else f"{number / MIB:.0f} MiB"


# -- one of them, in this process -------------------------------------------------------------------------------------


def main(name: str, *arguments: str) -> None:
    from launcher import endpoint_checks

    signal.alarm(60)  # should nobody be left who ends it
    known: dict[str, Callable[..., Finding]] = {**globals(), **vars(endpoint_checks)}
    print("\n" + json.dumps(asdict(known[name](*arguments))), flush=True)
    os._exit(0)  # without what torch does at its end, which may take its time


if __name__ == "__main__":
    main(*sys.argv[1:])
