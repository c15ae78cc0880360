"""Hosts of their own on one wire: network namespaces joined by a bridge, whose links can be cut.

A link that is down drops what is sent and closes no connection: a real partition. Needs root.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from types import TracebackType
from typing import Any


class Network:
    """A namespace with a bridge, and one for each host, at 10.200.0.1 and up in the order given."""

    def __init__(self, *hosts: str) -> None:
        self._tag = f"el{secrets.token_hex(3)}"
        self._names = {host: f"{self._tag}-{host}" for host in hosts}
        self.addresses = {host: f"10.200.0.{place}" for place, host in enumerate(hosts, start=1)}
        self._bridge = f"{self._tag}-wire"
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        _ip("netns", "add", self._bridge)
        _ip("-n", self._bridge, "link", "add", "wire", "type", "bridge")
        _ip("-n", self._bridge, "link", "set", "dev", "wire", "up")
        for host, name in self._names.items():
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "dev", "lo", "up")
            _ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", host, "netns", self._bridge)
            _ip("-n", self._bridge, "link", "set", "dev", host, "master", "wire", "up")
            _ip("-n", name, "address", "add", f"{self.addresses[host]}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "dev", "eth0", "up")

    def on(self, host: str) -> list[str]:
        """What executes its arguments as a command of this host."""
        return ["ip", "netns", "exec", self._names[host]]

    def cut(self, host: str) -> None:
        _ip("-n", self._bridge, "link", "set", "dev", host, "down")

    def mend(self, host: str) -> None:
        _ip("-n", self._bridge, "link", "set", "dev", host, "up")

    def cut_between(self, host: str, other: str) -> None:
        """These two do not hear each other any more; everybody else hears both. Frames go to a machine that is not."""
        for here, there in ((host, other), (other, host)):
            wrong = ("lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")
            _ip("-n", self._names[here], "neighbour", "replace", self.addresses[there], *wrong)

    def mend_between(self, host: str, other: str) -> None:
        for here, there in ((host, other), (other, host)):
            _ip("-n", self._names[here], "neighbour", "delete", self.addresses[there], "dev", "eth0")

    def close(self) -> None:
        for name in (*self._names.values(), self._bridge):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def can_make_networks() -> bool:
    if os.geteuid() != 0:
        return False
    try:
        Network("probe").close()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], capture_output=True, check=True, timeout=20)
