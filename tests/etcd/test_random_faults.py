"""Members that die, fall silent and come back at random, and what has to hold all the while."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.base import Entry, Store
from elastic_runtime.stores.etcd import EtcdStore
from tests.etcd.background import Background
from tests.etcd.server import EtcdCluster

SECONDS = 20.0
SETTLED_S = 30.0

Open = Callable[..., EtcdStore]


def one_fault(cluster: EtcdCluster, chance: random.Random, over: threading.Event) -> str:
    """One member is away for a while, so that the others always are a majority."""
    member = chance.randrange(3)
    silent = chance.random() < 0.5
    cluster.stop(member) if silent else cluster.kill(member)
    over.wait(chance.uniform(0.0, 2.5))
    cluster.resume(member) if silent else cluster.restart(member, wait=False)
    cluster.wait_healthy()
    return f"{'silence' if silent else 'death'} of {member}"


def append(store: Store, name: str, over: threading.Event) -> list[int]:
    """Swap as `name` until it is over. Returns the versions that are known to be won by it."""
    won_versions: list[int] = []
    while not over.is_set():
        try:
            entry = store.get("key")
            version = entry.version if entry else 0
            won, _ = store.swap("key", {"by": name}, version)
            if won:
                won_versions.append(version + 1)
        except StoreError:
            continue
    return won_versions


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_won_is_won_once_and_every_watch_sees_all_of_it(seed: int, open_store: Open) -> None:
    chance, over = random.Random(seed), threading.Event()
    with EtcdCluster(3) as cluster:
        ends = cluster.endpoints
        stores = [open_store(*ends[n % 3 :], *ends[: n % 3], call_limit_s=4.0) for n in range(4)]
        seen: list[list[Entry | None]] = [[] for _ in stores]
        for store, entries in zip(stores, seen, strict=True):
            store.watch("key", entries.append)
        seat = stores[0].seat("seat", 30.0)
        mine = seat.claim({}, 0)
        writing = [Background(lambda n=n: append(stores[n], str(n), over)) for n in range(3)]
        ends_at = time.monotonic() + SECONDS
        faults = []
        while time.monotonic() < ends_at:
            faults.append(one_fault(cluster, chance, over))
        over.set()
        won = [each.result(SETTLED_S) for each in writing]
        last = stores[3].get("key")
        assert last is not None and len(faults) >= 3
        versions = [version for each in won for version in each]  # type: ignore[attr-defined]
        assert len(versions) == len(set(versions)), faults
        deadline = time.monotonic() + SETTLED_S
        for entries in seen:
            while not entries or entries[-1] is None or entries[-1].version < last.version:
                assert time.monotonic() < deadline, faults
                time.sleep(0.01)
            assert [entry and entry.version for entry in entries] == list(range(1, last.version + 1)), faults
        writers = {entry.version: entry.value["by"] for entry in seen[3] if entry is not None}
        for number, each in enumerate(won):
            assert {writers[version] for version in each} <= {str(number)}, faults  # type: ignore[attr-defined]
        assert seat.holder() == mine
