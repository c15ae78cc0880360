"""Which network interface carries an address of this machine."""

from __future__ import annotations

import ipaddress
import socket

import psutil  # type: ignore[import-untyped]


def interface_of(address: str) -> str | None:
    """The interface's name; None for a loopback address, or one that is not this machine's.

    gloo, left alone, connects to whatever the machine's own name resolves to, which often is a loopback address; it is
    told this interface instead.
    """
    try:
        found = {
            ipaddress.ip_address(where[0]) for *_, where in socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)
        }
    except (OSError, ValueError):
        return None
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6):
                here = ipaddress.ip_address(each.address.partition("%")[0])
                if here in found and not here.is_loopback:
                    return name
    return None
