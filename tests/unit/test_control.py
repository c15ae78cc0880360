"""What a person asks a job: requests and answers over real sockets, the journal's tail, and how agents are found."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elastic_runtime.agent.doorplate import Doorplate, local_jobs
from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.journal import Journal
from elastic_runtime.rendezvous import control, frames
from elastic_runtime.rendezvous.control import Control
from elastic_runtime.rendezvous.tail import BLOCK_BYTES, Tail

TOKEN, RUN_ID, LIMIT_S = "secret", "job", 20.0


class Nodes:
    """A governor of a list of names."""

    def __init__(self, journal: Path, names: list[str]) -> None:
        self.journal, self.names, self.target = journal, names, len(names)

    def status(self) -> dict[str, Any]:
        return {"run_id": RUN_ID, "kind": "live", "target": self.target, "nodes": [{"node": n} for n in self.names]}

    def drain(self, node: str) -> str:
        known = [name for name in self.names if name.startswith(node)]
        if len(known) != 1:
            raise ConfigurationError(f"{node!r} is none of {', '.join(self.names)}")
        self.names.remove(known[0])
        return f"{known[0]} leaves"

    def resize(self, nodes: int) -> str:
        if nodes > 3:
            raise ConfigurationError(f"{nodes} is more than max_nodes=3")
        self.target = nodes
        return f"at most {nodes} take part"


class Served:
    """A loop in a thread of its own that accepts connections as a coordinator does."""

    def __init__(self, governor: Nodes, address: str = "127.0.0.1") -> None:
        self._governor, self.address = governor, address
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self._thread.start()
        assert self._up.wait(LIMIT_S)

    async def _main(self) -> None:
        self._loop, self._down = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._serve, self.address, 0, limit=frames.LINE_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        self._up.set()
        await self._down.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.CancelledError), contextlib.closing(writer):
            _, hello = frames.parse(await reader.readline())
            if hello == {"token": TOKEN, "run_id": RUN_ID}:
                await control.serve(reader, writer, self._governor)

    def connect(self, token: str = TOKEN) -> Control:
        return Control.connect(self.address, self.port, token, RUN_ID, LIMIT_S)

    def raw(self) -> socket.socket:
        sock = socket.create_connection((self.address, self.port), LIMIT_S)
        sock.sendall(frames.line(control.HELLO, token=TOKEN, run_id=RUN_ID))
        return sock

    def end(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._down.set)
        self._thread.join(LIMIT_S)


@pytest.fixture
def governor(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path / "journal.jsonl", ["n1-a", "n1-b", "n2-a"])


@pytest.fixture
def served(governor: Nodes) -> Iterator[Served]:
    one = Served(governor)
    yield one
    one.end()


@pytest.fixture
def journal(governor: Nodes) -> Iterator[Journal]:
    one = Journal(governor.journal, "n1-a")
    yield one
    one.close()


def exchange(served: Served, *sent: bytes) -> list[dict[str, Any]]:
    """What is answered to these bytes until the connection ends."""
    with served.raw() as sock:
        for each in sent:
            sock.sendall(each)
        sock.shutdown(socket.SHUT_WR)
        with sock.makefile("rb") as stream:
            return [json.loads(line) for line in stream]


# -- requests and answers ---------------------------------------------------------------------------------------------


def test_several_requests_on_one_connection(served: Served, governor: Nodes) -> None:
    with served.connect() as job:
        assert job.status() == governor.status()
        assert job.drain("n2") == "n2-a leaves"
        assert job.resize(1) == "at most 1 take part"
        status = job.status()
    assert status["target"] == 1 and [each["node"] for each in status["nodes"]] == ["n1-a", "n1-b"]


def test_a_refusal_says_what_to_do_and_the_connection_goes_on(served: Served) -> None:
    with served.connect() as job:
        with pytest.raises(ConfigurationError, match="none of n1-a, n1-b, n2-a"):
            job.drain("n1")
        with pytest.raises(ConfigurationError, match="max_nodes=3"):
            job.resize(4)
        assert job.status()["target"] == 3


@pytest.mark.parametrize(
    ("request_line", "words"),
    [
        (b"GET / HTTP/1.1\n", "status, drain, resize and events"),
        (b"[" * 10_000 + b"\n", "status, drain, resize and events"),
        (b"x" * (control.REQUEST_BYTES + 1) + b"\n", "status, drain, resize and events"),
        (b"x" * (frames.LINE_BYTES + 1) + b"\n", "status, drain, resize and events"),
        (frames.line("stop"), "'stop' is no request"),
        (frames.line("drain"), "name the node"),
        (frames.line("drain", node=7), "name the node"),
        (frames.line("drain", node=" "), "name the node"),
        (frames.line("resize"), "nodes is a whole number of at least 1, not None"),
        (frames.line("resize", nodes=0), "at least 1, not 0"),
        (frames.line("resize", nodes=True), "at least 1, not True"),
        (frames.line("resize", nodes="2"), "at least 1, not '2'"),
        (frames.line("resize", nodes=2.0), "at least 1, not 2.0"),
        (frames.line("events"), "last is a whole number"),
        (frames.line("events", last=-1), "last is a whole number"),
        (frames.line("events", last=control.MOST_EVENTS + 1), "last is a whole number"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else "",
)
def test_what_makes_no_sense_is_refused(served: Served, request_line: bytes, words: str) -> None:
    first, last = exchange(served, request_line, frames.line("status"))
    assert first["is"] == "refused" and words in first["text"]
    assert last["is"] == "answer", "one strange request does not end a connection"


def test_a_line_that_was_cut_off_is_no_request(served: Served, governor: Nodes) -> None:
    assert exchange(served, frames.line("drain", node="n2")[:-1]) == []
    assert len(governor.names) == 3


def test_a_wrong_token_ends_the_connection(served: Served) -> None:
    with served.connect(token="guess") as job, pytest.raises(StoreError, match="ended the connection"):
        job.status()
    with served.connect(token="guess") as job, pytest.raises(StoreError):
        list(job.events(last=1, follow=True))


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    with pytest.raises(StoreError, match="does not answer"):
        Control.connect("127.0.0.1", port, TOKEN, RUN_ID, 1.0)
    with pytest.raises(StoreError, match="does not answer"):
        Control.connect("127.0.0.1", 1 << 17, TOKEN, RUN_ID, 1.0)


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "not with a frame"), (b'{"is":"answer"}\n', "not with a status")],
)
def test_somebody_else_there(answer: bytes, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        with Control.connect("127.0.0.1", sock.getsockname()[1], TOKEN, RUN_ID, LIMIT_S) as job:
            visitor, _ = sock.accept()
            with visitor:
                visitor.sendall(answer)
                with pytest.raises(StoreError, match=words):
                    job.status()


def test_silence_ends_at_the_limit() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        with Control.connect("127.0.0.1", sock.getsockname()[1], TOKEN, RUN_ID, 0.05) as job:
            with pytest.raises(StoreError, match="no answer"):
                job.status()


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_over_ipv6(governor: Nodes) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    served = Served(governor, "::1")
    try:
        with served.connect() as job:
            assert job.status()["run_id"] == RUN_ID
    finally:
        served.end()


# -- events -----------------------------------------------------------------------------------------------------------


def test_the_last_events(served: Served, journal: Journal) -> None:
    with served.connect() as job:
        assert list(job.events(last=5)) == []
        for number in range(4):
            journal.write("settled", generation=number, kind="live")
        assert [e["generation"] for e in job.events(last=2)] == [2, 3]
        assert [e["kind"] for e in job.events(last=control.MOST_EVENTS)] == ["live"] * 4
        assert list(job.events(last=0)) == []
        assert job.status()["run_id"] == RUN_ID, "the connection serves on"


def test_no_journal_yet(served: Served, governor: Nodes) -> None:
    assert not governor.journal.exists()
    with served.connect() as job:
        assert list(job.events(last=5)) == []


def test_what_is_no_line_of_a_journal_is_left_out(served: Served, governor: Nodes) -> None:
    governor.journal.write_bytes(b'{"event":"a"}\nnonsense\n[1]\n{"is":"end","event":"b"}\n{"event":"half')
    with served.connect() as job:
        assert [e.get("event") for e in job.events(last=100)] == ["a", "b"]


def test_followed_events_come_as_they_are_written_and_end_with_the_job(served: Served, journal: Journal) -> None:
    journal.write("joined", generation=1)
    with served.connect() as job:
        events = job.events(last=1, follow=True)
        assert next(events)["event"] == "joined"
        for number in (2, 3):
            journal.write("settled", generation=number)
            assert next(events)["generation"] == number
        journal.write("closed", generation=3)
        served.end()
        assert [e["event"] for e in events] == ["closed"], "what was written last says why"


def test_a_follower_that_hangs_up_is_let_go(served: Served, governor: Nodes, journal: Journal) -> None:
    journal.write("joined", generation=1)
    with served.raw() as sock, sock.makefile("rb") as stream:
        sock.sendall(frames.line("events", last=1, follow=True))
        assert json.loads(stream.readline())["event"] == "joined"
        sock.shutdown(socket.SHUT_WR)
        assert stream.readline() == b""


@pytest.mark.parametrize("count", [0, 1, 2, 3, 500, 10_000])
def test_a_tail_begins_where_it_is_told(tmp_path: Path, count: int) -> None:
    path = tmp_path / "lines"
    lines = [b"%d %s" % (number, b"x" * (number % 700)) for number in range(2000)]
    path.write_bytes(b"\n".join(lines) + b"\nnot yet comp")
    assert path.stat().st_size > 2 * BLOCK_BYTES
    tail = Tail(path)
    tail.start_before_end(count)
    assert read(tail) == lines[max(0, len(lines) - count) :]
    with path.open("ab") as file:
        file.write(b"lete\n")
    assert read(tail) == [b"not yet complete"]


def test_a_line_longer_than_a_block_does_not_hold_up_the_others(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"first\n" + b"x" * (2 * BLOCK_BYTES) + b"\nlast\n")
    assert read(Tail(path))[-1] == b"last"


def read(tail: Tail) -> list[bytes]:
    found = []
    while lines := tail.read():
        found += lines
    return found


# -- doorplate --------------------------------------------------------------------------------------------------------

ABOUT = {"run_id": RUN_ID, "node": "n1-a", "run_dir": "/tmp/x", "address": "127.0.0.1", "port": 1, "token": TOKEN}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Its name is too long for the address of a socket."""
    runtime = tmp_path / ("long" * 25)
    runtime.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    return runtime / "elasticrun"


def with_doorplate(look: Callable[[], Any], describe: Callable[[], dict[str, Any]] = lambda: ABOUT) -> tuple[Any, str]:
    """What `look` sees while there is one, and what was told."""
    told: list[str] = []

    async def main() -> Any:
        plate = Doorplate(told.append)
        await plate.open(describe)
        try:
            return await asyncio.to_thread(look)
        finally:
            plate.close()
            plate.close()

    return asyncio.run(main()), "\n".join(told)


def test_an_agent_is_found_while_it_runs(home: Path) -> None:
    assert local_jobs() == []
    assert with_doorplate(local_jobs) == ([{**ABOUT, "pid": os.getpid()}], "")
    assert local_jobs() == [] and os.listdir(home) == []
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_it_says_what_holds_when_it_is_asked(home: Path) -> None:
    ports = iter((1, 2))
    found, _ = with_doorplate(lambda: local_jobs() + local_jobs(), lambda: {**ABOUT, "port": next(ports)})
    assert [each["port"] for each in found] == [1, 2]


def test_an_agent_without_that_variable_is_found_by_those_who_have_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> list[dict[str, Any]]:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(home.parent))
        return local_jobs()

    monkeypatch.delenv("XDG_RUNTIME_DIR")
    found, told = with_doorplate(look)
    assert len(found) == 1 and told == ""


def test_where_the_first_directory_cannot_be_it_is_the_second(home: Path) -> None:
    home.parent.rmdir()
    found, told = with_doorplate(local_jobs)
    assert len(found) == 1 and told == ""


@pytest.mark.parametrize("spoil", ["mode", "file", "link"])
def test_a_directory_that_is_not_private_is_refused_and_the_job_goes_on(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    home = tmp_path / "temporary" / f"elasticrun-{os.geteuid()}"
    if spoil == "mode":
        home.mkdir()
        home.chmod(0o750)
    elif spoil == "file":
        home.touch()
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        home.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="mode 750.*chmod 700" if spoil == "mode" else "have it removed"):
        local_jobs()
    _, told = with_doorplate(lambda: None)
    assert told.count("\n") == 0 and str(home) in told and "--endpoint" in told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 12345, -1)
    with pytest.raises(ConfigurationError, match="belongs to user 12345"):
        local_jobs()


def test_what_a_killed_agent_left_is_removed_by_who_lists(home: Path) -> None:
    home.mkdir(mode=0o700)
    stale = home / "4000000.sock"
    here = os.open(home, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(f"/proc/self/fd/{here}/{stale.name}")
    finally:
        os.close(here)
    (home / f"{os.getpid()}.sock").touch()  # the same process number, before
    found, _ = with_doorplate(local_jobs)
    assert len(found) == 1 and not stale.exists()
