"""Servers that several tests share, each with a prefix of its own. Who kills a member starts it again."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from elastic_runtime.stores import etcd
from elastic_runtime.stores.etcd import EtcdStore
from tests.etcd.proxy import Proxy
from tests.etcd.server import SOON_ELECTED, Address, Certificates, Etcd, EtcdCluster, free_port, make_certificates


@pytest.fixture(scope="session")
def server() -> Iterator[Etcd]:
    with Etcd() as one:
        yield one


@pytest.fixture(scope="session")
def cluster() -> Iterator[EtcdCluster]:
    with EtcdCluster(3, options=SOON_ELECTED) as three:
        yield three


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Of another authority."""
    return make_certificates(tmp_path_factory.mktemp("foreign"))


@pytest.fixture
def prefix() -> str:
    return f"{uuid.uuid4()}/"


@pytest.fixture
def open_store(prefix: str) -> Iterator[Callable[..., EtcdStore]]:
    """Opens handles that see the same keys."""
    opened: list[EtcdStore] = []

    def connect(*endpoints: Address, **options: Any) -> EtcdStore:
        opened.append(etcd.connect(endpoints, **{"prefix": prefix, "timeout_s": 20.0, **options}))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


@pytest.fixture
def proxy(server: Etcd) -> Iterator[Proxy]:
    with Proxy(server.endpoint) as between:
        yield between


@pytest.fixture
def unused() -> Address:
    """Where nobody listens."""
    return "127.0.0.1", free_port()
