"""The ledger job with a worker that hangs in the user's code (`--stuck`), or fails at a step (`--fail-at`)."""

from __future__ import annotations

import signal

from ledger import arguments, build, train

parser = arguments()
parser.add_argument("--stuck", action="store_true")
parser.add_argument("--fail-at", type=int, default=-1)
options = parser.parse_args()


def hang_or_fail(step: int) -> None:
    if options.stuck:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        (options.dir / "is-stuck").touch()
        while True:
            signal.pause()
    if step == options.fail_at:
        raise ZeroDivisionError("as it must")


train(*build(options), options, on_batch=hang_or_fail)
