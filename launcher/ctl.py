"""`elasticctl`: look at a running job, change it, or look at this machine.

What talks to a job is imported when it is needed: it brings torch along, and `doctor` is there for machines where just
that does not work.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from launcher import doctor, shown

DESCRIPTION = """Look at a running elastic job, change it, or check this machine. On a machine where one of its agents
runs the job is found by itself; from elsewhere name the --rdzv-endpoint that it was started with as --endpoint."""

EPILOG = """examples:
  elasticctl status                            who takes part in the job of this machine, with which ranks, and why
  elasticctl status --run-id=job1              of several jobs on this machine, this one
  elasticctl status --endpoint=HOST:29400      from a machine where no agent of the job runs
  elasticctl --rdzv-backend=etcd3 --endpoint=A:2379,B:2379 --run-id=job1 status
  elasticctl events --last=5 --follow          what happened last and what happens next, until Ctrl-C
  elasticctl drain n2                          the node whose name begins so finishes its step and leaves
  elasticctl resize 2                          two nodes take part, further ones stand by
  elasticctl doctor --endpoint=HOST:29400      whether this machine could take part

Exit code: 0 done, 1 the job cannot be reached (doctor: a check failed), 2 wrong command line, or refused."""

RESIZE = """At most N nodes take part from the next change on, N between the MIN and MAX of the job's --nnodes. Members
beyond N become standby between two steps, keep their agents, and come back when N grows. Nothing is redone."""
DRAIN = """The node's workers finish their step and leave, its agent ends with exit code 0, the others go on. Nothing is
redone. NODE is a name that `elasticctl status` shows, or the beginning of one. The same as SIGTERM to its agent."""
EVENTS = """The journal of the coordinator: each change of the job with its reason and where its time went."""
STATUS = """The job as its coordinator sees it: generation, nodes, ranks, and what it waits for."""
DOCTOR = """Check what a job needs of this machine; with --endpoint also the way to a job's store. Nothing is changed.
No check hangs: each is ended after some seconds."""

PORTS = {"c10d": 29400, "etcd3": 2379}
MOST_EVENTS = 10_000


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    endpoints = _endpoints(arguments.endpoint, PORTS[arguments.rdzv_backend])
    try:
        if arguments.command == "doctor":
            job = (arguments.rdzv_backend, arguments.run_id or "", arguments.rdzv_conf)
            return doctor.run(endpoints, job, as_json=arguments.json)
        return _talk(arguments, endpoints)
    except BrokenPipeError:  # who reads has seen enough, and Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130


def _talk(arguments: argparse.Namespace, endpoints: list[tuple[str, int]]) -> int:
    from elastic_runtime.errors import ConfigurationError, StoreError
    from launcher.jobs import Wanted, open_job

    wanted = Wanted(
        run_id=arguments.run_id, endpoints=endpoints, backend=arguments.rdzv_backend, conf=arguments.rdzv_conf
    )
    try:
        with open_job(wanted) as job:
            match arguments.command:
                case "status":
                    status = job.status()
                    _print(status if arguments.json else shown.status(status))
                case "drain":
                    _say(job.drain(arguments.node), arguments.json)
                case "resize":
                    _say(job.resize(arguments.nodes), arguments.json)
                case "events":
                    for entry in job.events(last=arguments.last, follow=arguments.follow):
                        _print(entry if arguments.json else shown.event(entry))
                    if arguments.follow:
                        print("elasticctl: the job has ended, or its coordinator has moved", file=sys.stderr)
    except ConfigurationError as error:
        print(f"elasticctl: {error}", file=sys.stderr)
        return 2
    except StoreError as error:
        print(f"elasticctl: {error}", file=sys.stderr)
        return 1
    return 0


def _say(text: str, as_json: bool) -> None:
    _print({"text": text} if as_json else shown.printable(text))


def _print(what: dict[str, Any] | str) -> None:
    print(what if isinstance(what, str) else json.dumps(what), flush=True)


def _parser() -> argparse.ArgumentParser:
    """The flags stand before or after the command, whichever way they come to mind."""
    parser = _Parser(
        prog="elasticctl",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_flags(parser, first=True)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, summary: str, description: str) -> argparse.ArgumentParser:
        one = commands.add_parser(
            name,
            help=summary,
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        _add_flags(one, first=False)
        return one

    command("status", "who takes part, and why", STATUS)
    events = command("events", "what happened, and what happens", EVENTS)
    events.add_argument("--follow", action="store_true", help="go on with what happens from now on")
    events.add_argument(
        "--last", type=_whole(0, MOST_EVENTS), default=20, metavar="N", help="begin with the last N (default 20)"
    )
    command("drain", "have a node leave", DRAIN).add_argument("node", metavar="NODE")
    command("resize", "have N nodes take part", RESIZE).add_argument("nodes", metavar="N", type=_whole(1, 1 << 20))
    command("doctor", "check this machine", DOCTOR)
    return parser


def _add_flags(parser: argparse.ArgumentParser, *, first: bool) -> None:
    def default(value: Any) -> Any:
        return value if first else argparse.SUPPRESS  # what stands before the command stays

    parser.add_argument("--run-id", "--rdzv-id", default=default(None), metavar="ID", help="the job's --rdzv-id")
    parser.add_argument(
        "--endpoint",
        "--rdzv-endpoint",
        default=default(""),
        metavar="HOST:PORT",
        help="the job's --rdzv-endpoint; several of an etcd are separated by commas",
    )
    parser.add_argument(
        "--rdzv-backend", choices=sorted(PORTS), default=default("c10d"), help="what is there (default c10d)"
    )
    parser.add_argument(
        "--rdzv-conf", default=default(""), metavar="K=V[,..]", help="the job's, if its etcd wants TLS or a user"
    )
    parser.add_argument(
        "--json", action="store_true", default=default(False), help="one JSON document; events: one for each line"
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, not the whole usage."""
        print(f"elasticctl: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(2)


def _whole(least: int, most: int) -> Any:
    def convert(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text[:9]) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return convert


def _endpoints(text: str, default_port: int) -> list[tuple[str, int]]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = part.rpartition(":") if not part.endswith("]") else (part, "", "")
        if not colon or (":" in host and not host.startswith("[")):  # an IPv6 address is all of it
            host, port = part, str(default_port)
        if not (port.isascii() and port.isdigit() and 0 < int(port[:6]) <= 65535):
            _parser().error(f"--endpoint={part}: {port!r} is not a port")
        found.append((host.strip("[]") or "localhost", int(port)))
    return found


if __name__ == "__main__":
    sys.exit(main())
