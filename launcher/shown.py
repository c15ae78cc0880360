"""What a job says of itself, as text for people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

COLUMNS = ("node", "address", "state", "ranks", "workers", "heard", "here for", "why")
LONGEST = 60  # of what an event says of one thing; all of it is there as JSON
TOLD_ELSEWHERE = ("time", "event", "generation", "node", "reason")


def status(job: dict[str, Any]) -> str:
    nodes: list[dict[str, Any]] = job["nodes"]
    members = sum(node["state"] == "member" for node in nodes)
    at = job["coordinator"]
    head = (
        f"job {job['run_id']}: generation {job['generation']} ({job['kind']}), {counted(members, 'node')}, "
        f"{counted(job['world_size'], 'worker')}, coordinated by {at['node']} since {duration(at['since_s'])}"
    )
    target, least, most = job.get("target"), job["min_nodes"], job["max_nodes"]
    wants = f"  it takes {least}" if least == most else f"  it takes {least} to {most}"
    wants += f" node{'s' if most != 1 else ''}"
    if target not in (None, most):
        wants += f", resized to at most {target}"
    lines = [f"{head}: {at['why']}" if at.get("why") else head, f"  {job['state']}: {job['reason']}", wants]
    if job.get("waiting"):
        lines.append(f"  now: {job['waiting']}")
    rows = [
        (
            node["node"],
            node["address"],
            node["state"],
            ranges(node["ranks"]),
            str(node["slots"]),
            f"{duration(node['heard_s'])} ago",
            duration(node["joined_s"]),
            _why(node, job["reason"]),
        )
        for node in nodes
    ]
    if rows:
        lines += ["", *table([COLUMNS, *rows])]
    return "\n".join(map(printable, lines))


def _why(node: dict[str, Any], reason: str) -> str:
    """Empty for a member that is one for the reason that stands above the table."""
    why = str(node.get("why", ""))
    return "" if node["state"] == "member" and reason in why else why


def event(entry: dict[str, Any]) -> str:
    """One line: when, in which generation, what, by whom, why, and the event's own facts."""
    at = float(entry.get("time", 0.0))
    clock = f"{time.strftime('%H:%M:%S', time.localtime(at))}.{int(at * 1000) % 1000:03d}"
    words = [f"{entry.get('node', '')}:", str(entry.get("reason", ""))]
    words += [f"{name}={_short(value)}" for name, value in entry.items() if name not in TOLD_ELSEWHERE]
    what = f"{clock}  {'g' + str(entry.get('generation', '')):<5} {entry.get('event', ''):<17}"
    return printable(f"{what} {' '.join(filter(None, words))}")


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + " ".join(f"{name}={_short(each)}" for name, each in value.items()) + ")"
    if isinstance(value, list):
        return f"[{len(value)}]" if any(isinstance(each, list | dict) for each in value) else str(value)
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of equally many cells, aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def duration(seconds: float) -> str:
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    if seconds < 60:
        return f"{seconds:.0f}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m"
    if seconds < 86400:
        return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02d}m"
    return f"{int(seconds // 86400)}d{int(seconds % 86400 // 3600):02d}h"


def ranges(numbers: Iterable[int]) -> str:
    """0, 1, 2 and 5 as 0-2,5."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans) or "-"


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def printable(text: str) -> str:
    """Names and reasons come from other machines: nothing in them commands a terminal."""
    return "".join(each if each.isprintable() else "?" for each in text)
