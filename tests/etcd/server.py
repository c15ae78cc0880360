"""Real etcd servers on loopback, for tests: one member or several, that can be killed, stopped and started again.

A server dies with the *thread* that started it (the kernel sees to that), so start them from a test's main thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

START_S = 30.0  # until a member says that it is healthy; several times what it takes on a busy machine
_LOOK_EVERY_S = 0.02
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

Address = tuple[str, int]


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files: an authority, a server's (for 127.0.0.1 and localhost) and a client's certificate."""

    authority: str
    server: str
    server_key: str
    client: str
    client_key: str


@dataclass(frozen=True, kw_only=True)
class User:
    """Authentication is switched on, and this user may read and write below `prefix` only. (So is a root user.)"""

    name: str
    password: str
    prefix: str = ""
    token_ttl_s: int = 300


ROOT = "root:root"

# Half of what etcd takes by itself until a leader's death is noticed. With less a busy machine would elect for nothing.
SOON_ELECTED = ("--heartbeat-interval=50", "--election-timeout=500")


class EtcdCluster:
    """`size` members on ports of their own, ready for calls when made. `close` leaves nothing behind.

    `certificates`: clients have to speak TLS; `client_certificates`: and to show a certificate of the same authority.
    """

    def __init__(
        self,
        size: int = 3,
        *,
        certificates: Certificates | None = None,
        client_certificates: bool = False,
        user: User | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._folder = _new_folder()
        self._size = size
        self._certificates, self._client_certificates = certificates, client_certificates
        self._options = [*options, *(["--auth-token-ttl", str(user.token_ttl_s)] if user else [])]
        self._asks_for_users = False
        self._processes: list[subprocess.Popen[bytes] | None] = [None] * size
        self._ports = [free_port() for _ in range(2 * size)]
        try:
            for member in range(size):
                self._start(member, "new")
            self.wait_healthy()
            if user is not None:
                self._add(user)
        except BaseException:
            self.close()
            raise

    @property
    def endpoints(self) -> list[Address]:
        return [("127.0.0.1", self._ports[2 * member]) for member in range(self._size)]

    def kill(self, member: int = 0) -> None:
        """SIGKILL, and wait for the end."""
        process, self._processes[member] = self._processes[member], None
        if process is not None:
            process.kill()
            process.wait()

    def stop(self, member: int = 0) -> None:
        """SIGSTOP: it is silent, and its connections stay open. Returns when all of its threads stand still."""
        process = self._process(member)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self, member: int = 0) -> None:
        self._process(member).send_signal(signal.SIGCONT)

    def restart(self, member: int = 0, *, wait: bool = True) -> None:
        """Start a member that was killed, with its data. Without a majority it does not become healthy."""
        assert self._processes[member] is None, "kill it first"
        self._start(member, "existing")
        if wait:
            self.wait_healthy(member)

    def wait_healthy(self, *members: int) -> None:
        """Until these members (none named: all) see a leader and answer."""
        deadline = time.monotonic() + START_S
        for member in members or range(self._size):
            while not self._is_healthy(member):
                process = self._process(member)
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"etcd did not start:\n{self._log(member).read_text()[-3000:]}")
                time.sleep(_LOOK_EVERY_S)

    def leader(self) -> int:
        """Which member leads. Waits until one does."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for member, process in enumerate(self._processes):
                if process is None:
                    continue
                with contextlib.suppress(subprocess.SubprocessError, ValueError):
                    status = json.loads(self.ctl("endpoint", "status", "-w", "json", member=member))[0]["Status"]
                    if status.get("leader") == status["header"]["member_id"]:
                        return member
            time.sleep(_LOOK_EVERY_S)
        raise RuntimeError("no member leads")

    def compact(self) -> None:
        """Forget all history before the present."""
        status = json.loads(self.ctl("endpoint", "status", "-w", "json"))[0]["Status"]
        self.ctl("compact", str(status["header"]["revision"]))

    def ctl(self, *arguments: str, member: int = 0) -> str:
        """What `etcdctl` prints. Raises CalledProcessError if it fails."""
        host, port = self.endpoints[member]
        command = [program("etcdctl"), f"--endpoints={'https' if self._certificates else 'http'}://{host}:{port}"]
        if (found := self._certificates) is not None:
            command += [f"--cacert={found.authority}", f"--cert={found.client}", f"--key={found.client_key}"]
        if self._asks_for_users:
            command.append(f"--user={ROOT}")
        environment = {**os.environ, "ETCDCTL_API": "3"}
        done = subprocess.run([*command, *arguments], env=environment, capture_output=True, timeout=START_S, check=True)
        return done.stdout.decode()

    def close(self) -> None:
        """End everything, by pid. May be repeated."""
        for member in range(self._size):
            self.kill(member)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _process(self, member: int) -> subprocess.Popen[bytes]:
        process = self._processes[member]
        assert process is not None, f"member {member} was killed"
        return process

    def _log(self, member: int) -> Path:
        return self._folder / f"{member}.log"

    def _start(self, member: int, state: str) -> None:
        scheme = "https" if self._certificates else "http"
        client = f"{scheme}://127.0.0.1:{self._ports[2 * member]}"
        peers = [f"http://127.0.0.1:{self._ports[2 * each + 1]}" for each in range(self._size)]
        command = [
            program("etcd"),
            f"--name=m{member}",
            f"--data-dir={self._folder / str(member)}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peers[member]}",
            f"--initial-advertise-peer-urls={peers[member]}",
            f"--initial-cluster={','.join(f'm{each}={url}' for each, url in enumerate(peers))}",
            f"--initial-cluster-token={self._folder.name}",
            f"--initial-cluster-state={state}",
            "--logger=zap",
            "--log-outputs=stderr",
            "--log-level=warn",
            *self._options,
        ]
        if (found := self._certificates) is not None:
            command += [f"--cert-file={found.server}", f"--key-file={found.server_key}"]
            if self._client_certificates:
                command += ["--client-cert-auth", f"--trusted-ca-file={found.authority}"]
        parent = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)

        environment = {key: value for key, value in os.environ.items() if not key.startswith("ETCD_")}
        if platform.machine() == "aarch64":
            environment["ETCD_UNSUPPORTED_ARCH"] = "arm64"
        with self._log(member).open("ab") as log:
            self._processes[member] = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _is_healthy(self, member: int) -> bool:
        host, port = self.endpoints[member]
        context = None
        if (found := self._certificates) is not None:
            context = ssl.create_default_context(cafile=found.authority)
            context.load_cert_chain(found.client, found.client_key)
        try:
            url = f"{'https' if context else 'http'}://{host}:{port}/health"
            opener = urllib.request.build_opener(
                urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
            )
            with opener.open(url, timeout=2.0) as answer:
                return bool(json.load(answer)["health"] == "true")
        except (OSError, ValueError, KeyError):
            return False

    def _add(self, user: User) -> None:
        self.ctl("user", "add", ROOT)
        self.ctl("user", "grant-role", "root", "root")
        self.ctl("role", "add", "job")
        self.ctl("role", "grant-permission", "--prefix=true", "job", "readwrite", user.prefix)
        self.ctl("user", "add", f"{user.name}:{user.password}")
        self.ctl("user", "grant-role", user.name, "job")
        self.ctl("auth", "enable")
        self._asks_for_users = True


class Etcd(EtcdCluster):
    """One member. See `EtcdCluster` for the options."""

    def __init__(self, **options: Any) -> None:
        super().__init__(1, **options)

    @property
    def endpoint(self) -> Address:
        return self.endpoints[0]


def _new_folder() -> Path:
    """In memory where that is possible: etcd syncs each write. What tests that were killed left there is removed."""
    in_memory = Path("/dev/shm")
    where = in_memory if in_memory.is_dir() else Path(tempfile.gettempdir())
    for left in where.glob("etcd-test-*-*"):
        if not Path("/proc", left.name.split("-")[2]).exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"etcd-test-{os.getpid()}-", dir=where))


def make_certificates(folder: Path) -> Certificates:
    """New ones, by the program `openssl`."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, timeout=START_S, check=True)

    def request(name: str) -> tuple[str, ...]:
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key")
        return ("req", *key, "-subj", f"/CN={name}")

    openssl(*request("authority"), "-x509", "-days", "2", "-out", "authority.pem")
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        openssl(*request(name), "-out", f"{name}.csr")
        signer = ("-CA", "authority.pem", "-CAkey", "authority.key", "-CAcreateserial")
        openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-days", "2", "-extfile", "names", "-out", f"{name}.pem")
    at = {path.name: str(path) for path in folder.iterdir()}
    return Certificates(
        authority=at["authority.pem"],
        server=at["server.pem"],
        server_key=at["server.key"],
        client=at["client.pem"],
        client_key=at["client.key"],
    )


def program(name: str) -> str:
    """On the path, or where the Makefile puts it."""
    beside = Path(sys.prefix) / "etcd" / "usr" / "bin"
    found = shutil.which(name) or shutil.which(name, path=str(beside))
    if found is None:
        raise RuntimeError(f"{name} is not installed and these tests need it: make etcd")
    return found


def free_port() -> int:
    """A port nobody listens on. Below those the kernel gives to outgoing connections, which might take it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15000, 30000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
