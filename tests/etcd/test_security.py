"""TLS, users, and everything that a person has to correct: told from an outage, with a remedy, and soon."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from elastic_runtime.errors import ConfigurationError, StoreError
from elastic_runtime.stores.base import Entry
from elastic_runtime.stores.etcd import EtcdStore, Security
from elastic_runtime.stores.etcd_greeting import check_version
from tests.etcd.background import PROMPT_S, Background
from tests.etcd.server import Address, Certificates, Etcd, User

Open = Callable[..., EtcdStore]

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def encrypted(certificates: Certificates) -> Iterator[Etcd]:
    with Etcd(certificates=certificates) as one:
        yield one


@pytest.fixture(scope="module")
def mutual(certificates: Certificates) -> Iterator[Etcd]:
    with Etcd(certificates=certificates, client_certificates=True) as one:
        yield one


@pytest.fixture(scope="module")
def guarded() -> Iterator[Etcd]:
    with Etcd(user=User(name="job", password=PASSWORD, prefix="jobs/")) as one:
        yield one


def misconfigured(open_store: Open, endpoint: Address, **options: object) -> str:
    """What is said, at once, whatever time etcd is given to start."""
    began = time.monotonic()
    with pytest.raises(ConfigurationError) as raised:
        open_store(endpoint, timeout_s=60.0, **options)
    assert time.monotonic() - began < PROMPT_S
    assert f"{endpoint[0]}:{endpoint[1]}" in str(raised.value)
    return str(raised.value)


# TLS


def test_a_store_over_tls(encrypted: Etcd, certificates: Certificates, open_store: Open) -> None:
    security = Security(ca_cert=certificates.authority)
    store = open_store(encrypted.endpoint, security=security)
    waiting = Background(lambda: store.wait("key", 0, 60.0))
    assert waiting.stays_blocked()
    other = open_store(("localhost", encrypted.endpoint[1]), security=security)
    _, entry = other.swap("key", {}, 0)
    assert waiting.result() == entry
    assert store.seat("seat", 5.0).claim({}, 0) is not None


def test_a_store_that_wants_a_clients_certificate(mutual: Etcd, certificates: Certificates, open_store: Open) -> None:
    security = Security(ca_cert=certificates.authority, cert=certificates.client, key=certificates.client_key)
    assert open_store(mutual.endpoint, security=security).swap("key", {}, 0)[0]


def test_tls_that_somebody_has_to_correct(
    server: Etcd,
    encrypted: Etcd,
    mutual: Etcd,
    certificates: Certificates,
    foreign: Certificates,
    open_store: Open,
    capfd: pytest.CaptureFixture[str],
) -> None:
    trusting = Security(ca_cert=certificates.authority)
    strange = Security(ca_cert=certificates.authority, cert=foreign.client, key=foreign.client_key)
    for endpoint, security, said in (
        (encrypted.endpoint, Security(), "speaks TLS: give the certificate of its authority"),
        (encrypted.endpoint, Security(ca_cert=foreign.authority), "not trusted"),
        (encrypted.endpoint, Security(tls=True), "not trusted"),
        (server.endpoint, trusting, "without TLS: leave the certificates out"),
        (mutual.endpoint, trusting, "give a client certificate"),
        (mutual.endpoint, strange, "give a client certificate"),
    ):
        assert said in misconfigured(open_store, endpoint, security=security)
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_files_that_are_no_certificates(encrypted: Etcd, certificates: Certificates, open_store: Open) -> None:
    for security in (
        Security(ca_cert="/nowhere.pem"),
        Security(ca_cert=__file__),
        Security(ca_cert=certificates.authority, cert="/nowhere.pem", key=certificates.client_key),
        Security(ca_cert=certificates.authority, cert=certificates.client, key=certificates.server_key),
    ):
        with pytest.raises(ConfigurationError, match="no TLS is possible with"):
            open_store(encrypted.endpoint, security=security)


# Users


def guarded_store(guarded: Etcd, open_store: Open, prefix: str, **options: object) -> EtcdStore:
    security = Security(user="job", password=PASSWORD)
    return open_store(guarded.endpoint, prefix=f"jobs/{prefix}", security=security, **options)


def test_a_store_that_wants_a_user(guarded: Etcd, open_store: Open, prefix: str) -> None:
    store, other = (guarded_store(guarded, open_store, prefix) for _ in range(2))
    waiting = Background(lambda: store.wait("key", 0, 60.0))
    assert waiting.stays_blocked()
    _, entry = other.swap("key", {}, 0)
    assert waiting.result() == entry
    seat = store.seat("seat", 5.0)
    assert seat.claim({}, 0) is not None
    seat.release()
    assert other.seat("seat", 5.0).holder() is None


def test_users_that_somebody_has_to_correct(guarded: Etcd, open_store: Open) -> None:
    for security, prefix, said in (
        (Security(), "jobs/", "wants a user and a password"),
        (Security(user="job", password="wrong"), "jobs/", "does not know the user 'job' with this password"),
        (Security(user="nobody", password=PASSWORD), "jobs/", "does not know the user 'nobody'"),
        (Security(user="job", password=PASSWORD), "elsewhere/", "grant a role with readwrite"),
    ):
        assert said in misconfigured(open_store, guarded.endpoint, security=security, prefix=prefix)
    assert guarded.ctl("get", "--prefix", "elsewhere/") == ""


def test_a_user_for_an_etcd_that_asks_for_none(server: Etcd, open_store: Open) -> None:
    assert open_store(server.endpoint, security=Security(user="job", password=PASSWORD)).swap("key", {}, 0)[0]


def test_a_token_that_is_not_known_any_more_is_replaced(guarded: Etcd, open_store: Open, prefix: str) -> None:
    store, other = (guarded_store(guarded, open_store, prefix) for _ in range(2))

    def expire() -> None:
        store._members.connection()._token = "expired.1"

    expire()
    assert store.swap("key", {}, 0)[0]
    expire()
    assert store.get("key") is not None
    seat = store.seat("seat", 2.0)
    expire()
    mine = seat.claim({}, 0)
    assert mine is not None
    expire()
    assert other.seat("seat", 2.0).wait(mine.term, 3.0) == (False, None)  # its lease is renewed with a new one


def test_a_watch_whose_token_is_not_known_any_more_goes_on(guarded: Etcd, open_store: Open, prefix: str) -> None:
    store, other = (guarded_store(guarded, open_store, prefix) for _ in range(2))
    watch = store._members.connection().watch

    def with_a_stale_token(*arguments: object) -> object:
        connection = store._members.connection()
        known, connection._token = connection._token, "expired.1"
        try:
            return watch(*arguments)  # type: ignore[arg-type]
        finally:
            connection._token = known

    store._members.connection().watch = with_a_stale_token  # type: ignore[assignment]
    waiting = Background(lambda: store.wait("key", 0, 60.0))
    assert waiting.stays_blocked()
    _, entry = other.swap("key", {}, 0)
    assert waiting.result() == entry


def test_a_restarted_server_that_forgot_its_tokens(guarded: Etcd, open_store: Open, prefix: str) -> None:
    store = guarded_store(guarded, open_store, prefix, call_limit_s=10.0)
    waiting = Background(lambda: store.wait("key", 0, 60.0))
    assert waiting.stays_blocked()
    guarded.kill()
    guarded.restart()
    won, entry = store.swap("key", {}, 0)
    assert won
    assert waiting.result(10.0) == entry


def test_a_user_that_lost_its_rights_is_a_store_error(guarded: Etcd, open_store: Open, prefix: str) -> None:
    store = guarded_store(guarded, open_store, prefix)
    guarded.ctl("user", "revoke-role", "job", "job")
    try:
        for call in (lambda: store.get("key"), lambda: store.swap("key", {}, 0), lambda: store.wait("key", 0, 60.0)):
            with pytest.raises(StoreError, match="grant a role"):
                Background(call).result()
    finally:
        guarded.ctl("user", "grant-role", "job", "job")
    assert store.get("key") is None


# What is no etcd


class Web(http.server.BaseHTTPRequestHandler):
    answer = b"<html>hello</html>"

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, *arguments: object) -> None:
        pass


class OldEtcd(Web):
    answer = b'{"etcdserver":"2.3.8","etcdcluster":"2.3.0"}'


def serving(answers: type[Web]) -> http.server.ThreadingHTTPServer:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_a_web_server_and_an_old_etcd_are_named(open_store: Open) -> None:
    for answers, said in ((Web, "held by something else"), (OldEtcd, "version 2.3.8, and 3.4 is the least")):
        with serving(answers) as server:
            host, port = server.server_address[:2]
            assert said in misconfigured(open_store, (str(host), port))
            server.shutdown()


def test_versions_that_will_do() -> None:
    for text in ("3.4.23", "3.5.0-rc.1", "3.10.1", "4.0.0", "main"):
        check_version(text, "there")
    for text in ("3.3.27", "2.3.8", "3.1.0+git"):
        with pytest.raises(ConfigurationError, match="update"):
            check_version(text, "there")


def test_something_silent_is_a_configuration_error_in_the_end(open_store: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = silent.getsockname()[:2]
        connecting = Background(lambda: open_store(endpoint, timeout_s=0.5))
        with pytest.raises(ConfigurationError, match=f"{endpoint[1]} accepts connections but does not answer"):
            connecting.result(0.5 + 2 * PROMPT_S)


def test_nobody_is_a_store_error_in_the_end(open_store: Open, unused: Address) -> None:
    began = time.monotonic()
    with pytest.raises(StoreError, match=f"no member of etcd can be reached at 127.0.0.1:{unused[1]}"):
        open_store(unused, timeout_s=0.5)
    assert 0.4 < time.monotonic() - began < 0.5 + PROMPT_S
    with pytest.raises(StoreError, match=r"host\.invalid"):
        open_store(("host.invalid", 2379), timeout_s=0.5)


def test_a_server_that_starts_later_is_waited_for(server: Etcd, open_store: Open) -> None:
    server.kill()
    connecting = Background(lambda: open_store(server.endpoint, timeout_s=60.0))
    assert connecting.stays_blocked()
    server.restart()
    store = connecting.result(10.0)
    assert isinstance(store, EtcdStore)
    assert store.swap("key", {}, 0)[0]


def test_one_member_that_answers_is_enough(server: Etcd, open_store: Open, unused: Address) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, serving(Web) as web:
        others = (unused, silent.getsockname()[:2], web.server_address[:2])
        store = open_store(*others, server.endpoint, call_limit_s=2.0)
        assert isinstance(store.swap("key", {}, 0)[1], Entry)
        web.shutdown()


def test_no_endpoint_at_all(open_store: Open) -> None:
    with pytest.raises(ConfigurationError, match="no endpoint"):
        open_store()


def test_passwords_are_not_shown() -> None:
    assert PASSWORD not in repr(Security(user="job", password=PASSWORD))
