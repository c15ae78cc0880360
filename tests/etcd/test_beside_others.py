"""The store beside a current protobuf, and inside a process that starts others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic_runtime.stores.etcd import EtcdStore
from tests.etcd.background import PROMPT_S, Background
from tests.etcd.server import Etcd

ROOT = Path(__file__).parents[2]

Open = Callable[..., EtcdStore]


def output(text: str, *arguments: object) -> str:
    """What a program prints that has nothing to say to stderr and ends well."""
    command = [sys.executable, "-c", text, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


# The import


def test_etcd3_and_grpc_are_imported_by_nothing_but_an_open_store() -> None:
    text = """
import sys
import elastic_runtime, elastic_runtime.stores.etcd, launcher.cli
print([name for name in ("etcd3", "grpc", "google.protobuf") if name in sys.modules])
"""
    assert output(text) == "[]"


IMPORT = """
import os, sys
before = dict(os.environ)
import google.protobuf
from google.protobuf import descriptor_pool
from google.protobuf.internal import api_implementation
from elastic_runtime.stores import etcd_protobuf
rpc = etcd_protobuf.load()
import etcd3  # all of it, its own client too
request = rpc.TxnRequest(compare=[rpc.Compare(key=b"k", target=rpc.Compare.VERSION, version=3)])
assert rpc.TxnRequest.FromString(request.SerializeToString()) == request
assert etcd3.etcdrpc is rpc and rpc.NOSPACE == 1 and rpc.AlarmType.Name(1) == "NOSPACE"
assert (etcd3.transactions.Version("k") == 3).build_message().key == b"k"
assert dict(os.environ) == before
in_default_pool = True
try:
    descriptor_pool.Default().FindFileByName("rpc.proto")
except KeyError:
    in_default_pool = False
print(google.protobuf.__version__.partition(".")[0], api_implementation.Type(), in_default_pool)
"""


def test_etcd3_imports_beside_a_current_protobuf_and_takes_no_name_from_others() -> None:
    version, implementation, in_default_pool = output(IMPORT).split()
    assert int(version) >= 6
    assert (implementation, in_default_pool) == ("upb", "False")


def test_messages_that_are_there_already_are_left_alone() -> None:
    text = """
import sys, types
package = types.ModuleType("etcd3"); package.__path__ = []
theirs = types.ModuleType("etcd3.etcdrpc")
sys.modules |= {"etcd3": package, "etcd3.etcdrpc": theirs}
from elastic_runtime.stores import etcd_protobuf
assert etcd_protobuf.load() is theirs
"""
    assert output(text) == ""


def test_generated_files_that_an_old_protobuf_runs_are_left_to_it(tmp_path: Path) -> None:
    text = """
import sys, types
import google.protobuf
google.protobuf.__version__ = "3.20.3"
package = types.ModuleType("etcd3"); package.__path__ = [sys.argv[1]]
sys.modules["etcd3"] = package
from elastic_runtime.stores import etcd_protobuf
print(etcd_protobuf.load().ours)
"""
    (tmp_path / "etcdrpc").mkdir()
    (tmp_path / "etcdrpc" / "__init__.py").write_text("ours = 'as it came'\n")
    assert output(text, tmp_path) == "as it came"


# Other processes

OPEN = """
import ctypes, os, subprocess, sys, threading
from elastic_runtime.stores import etcd
store = etcd.connect([("127.0.0.1", int(sys.argv[1]))], prefix=sys.argv[2], timeout_s=10.0)
seat = store.seat("seat", 2.0)
assert seat.claim({}, 0) is not None
store.watch("key", lambda entry: None)
over = threading.Event()

def swap():
    version = 0
    while not over.is_set():
        won, _ = store.swap("key", {}, version)
        assert won
        version += 1

busy = threading.Thread(target=swap)
busy.start()
library = ctypes.CDLL(None)

def die_with_parent():
    library.prctl(1, 9)

child = [sys.executable, "-S", "-c", "import os; print(*[n for n in os.environ if 'GRPC' in n or 'PROTOCOL' in n])"]
for number in range(30):
    done = subprocess.run(
        child, preexec_fn=die_with_parent if number % 2 else None, capture_output=True, text=True, timeout=20.0
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", ""), done
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
over.set()
busy.join()
assert seat.holder() is not None
store.close()
print("done")
"""


def test_children_of_a_process_with_an_open_store_are_quiet_and_inherit_nothing(server: Etcd, prefix: str) -> None:
    assert output(OPEN, server.endpoint[1], prefix) == "done"


def test_a_process_may_end_without_closing_its_store(server: Etcd, prefix: str) -> None:
    text = """
import sys, threading
from elastic_runtime.stores import etcd
store = etcd.connect([("127.0.0.1", int(sys.argv[1]))], prefix=sys.argv[2], timeout_s=10.0)
store.seat("seat", 5.0).claim({}, 0)
store.watch("key", lambda entry: None)
threading.Thread(target=store.wait, args=("other", 0, 60.0), daemon=True).start()
print("ends")
"""
    assert output(text, server.endpoint[1], prefix) == "ends"


def test_an_outage_is_not_written_to_stderr(prefix: str, capfd: pytest.CaptureFixture[str], open_store: Open) -> None:
    with Etcd() as server:
        store = open_store(server.endpoint, call_limit_s=0.5)
        waiting = Background(lambda: store.wait("key", 0, 60.0))
        assert waiting.stays_blocked()
        server.kill()
        with pytest.raises(Exception, match="etcd"):
            waiting.result(0.5 + PROMPT_S)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_nothing_is_left_by_a_handle_that_is_closed(server: Etcd, open_store: Open) -> None:
    def threads() -> set[str]:
        return {each.name for each in threading.enumerate() if each.name.startswith("etcd-")}

    def sockets() -> int:
        return sum(_is_connected_to(each, server.endpoint[1]) for each in Path("/proc/self/fd").iterdir())

    def round_trip() -> None:
        store = open_store(server.endpoint)
        store.seat("seat", 5.0).claim({}, 0)
        waiting = Background(lambda: store.wait("key", 0, 60.0))
        assert waiting.stays_blocked(0.05)
        store.close()
        with pytest.raises(Exception, match="closed"):
            waiting.result()

    for _ in range(3):
        round_trip()
    _until(lambda: threads() == set())
    _until(lambda: sockets() == 0)


def _is_connected_to(link: Path, port: int) -> bool:
    try:
        if not os.readlink(link).startswith("socket:"):
            return False
        with socket.socket(fileno=os.dup(int(link.name))) as one:
            return one.family == socket.AF_INET and one.getpeername()[1] == port
    except (OSError, IndexError):
        return False


def _until(fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5.0
    while not fact():
        assert time.monotonic() < deadline
        time.sleep(0.01)
