"""How a store is spoken to: in the clear, or with TLS and a name."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """Paths of PEM files, and a user with a password. TLS is spoken if `tls` or `ca_cert` is given."""

    tls: bool = False
    ca_cert: str | None = None
    cert: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
