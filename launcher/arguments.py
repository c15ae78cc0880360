"""The command line: torch's own parser, so that every flag and PET_* variable of the installed torchrun is there,
and the few that are this launcher's."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from torch.distributed.argparse_util import env
from torch.distributed.run import get_args_parser

from launcher import config

DESCRIPTION = """Start a training script on this machine's workers, as torchrun does, and keep the job alive while
workers and nodes die, join and leave. A script that opens `elastic_runtime.Session` goes on in the same processes; any
other script is restarted as torchrun would. Start the same line on several machines (or several times on one) with the
same --rdzv-id and --rdzv-endpoint to form one job of --nnodes=MIN:MAX nodes."""

EPILOG = """examples:
  elasticrun --nproc-per-node=2 train.py                       two workers on this machine
  elasticrun --config job.toml                                 all of it from a file
  elasticrun --nnodes=1:4 --nproc-per-node=8 --rdzv-backend=c10d \\
             --rdzv-endpoint=HOST:29400 --rdzv-id=job1 train.py  on each of up to four machines

SIGTERM to an agent drains its node: workers finish their step and leave, the others go on. The first agent serves the
store: drained, it goes on serving until the others end; a second signal ends the job. A node whose workers are done
waits for the others. What happened to a job is in <log-dir>/<rdzv-id>_*/journal.jsonl; errors, and what --redirects
and --tee keep, are in attempt_*/<local rank> beside it. Exit code: 0 done or drained, 1 failed, 2 wrong command line
or Session argument, 128+n ended by signal n."""


def parser() -> argparse.ArgumentParser:
    result: argparse.ArgumentParser = get_args_parser()
    result.prog = "elasticrun"
    result.description, result.epilog = DESCRIPTION, EPILOG
    result.formatter_class = argparse.RawDescriptionHelpFormatter
    result.error = _refuse  # type: ignore[method-assign]
    ours = result.add_argument_group("elasticrun")
    ours.add_argument(
        "--config",
        action=env,
        metavar="FILE",
        help="job.toml or job.yaml: flags, the script, and what its Session is not given (docs/configuration.md)",
    )
    ours.add_argument("--print-config", action="store_true", help="show the merged configuration as TOML, and exit")
    ours.add_argument("--print-schema", action=PrintSchema, help="show the JSON schema of --config, and exit")
    ours.add_argument(
        "--dead-after",
        action=env,
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="a node that is silent for so long is removed; one whose connection closes is removed at once (default 3)",
    )
    for action in result._actions:
        if action.dest == "max_restarts":
            if "PET_MAX_RESTARTS" not in os.environ:
                action.default = None
            action.help = (
                "restarts of workers per node. Unset: 3 per worker in any 10 minutes for a script with a Session, 0 "
                "for any other. A change of membership costs none"
            )
    return result


def _refuse(message: str) -> NoReturn:
    """One line, as every other refusal; torch's parser would print its whole usage."""
    print(f"elasticrun: {message} (see elasticrun --help)", file=sys.stderr)
    sys.exit(2)


class PrintSchema(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from launcher.schema import json_schema

        print(json_schema(parser), end="")
        parser.exit()


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    arguments = config.parse(parser, argv)
    if arguments.print_config:
        from launcher.config_shown import as_toml

        print(as_toml(arguments, parser()), end="")
        sys.exit(0)
    return arguments
