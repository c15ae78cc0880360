"""A real etcd, which all contract tests share: each keeps to a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.etcd.server import Etcd


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[Etcd]:
    with Etcd() as server:
        yield server
