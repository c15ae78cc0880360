"""Where the workers of a live generation meet: a few keys a generation, served by the agent of the first rank.

torch's TCPStore would do but for two things: a client blocked in it cannot be freed, and it resolves the name of each
peer's address (client and server, at every connection), so that a slow name server stalls a recovery by seconds. What
a group needs to form is small: set, add, and a wait for keys. It goes over one connection a worker, JSON lines.
Whoever is not of the newest two generations is turned away, and their keys are gone.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from elastic_runtime.rendezvous import frames


class Room:
    """The keys of one generation."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.news = asyncio.Condition()
        self.visits: set[asyncio.Task[None]] = set()


class Meeting:
    def __init__(self) -> None:
        self._rooms: dict[int, Room] = {}
        self._newest = 0
        self._guests: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.token = ""

    async def open(self, address: str) -> int:
        """Listen; returns the port."""
        sock = frames.listening_socket(address)
        self._server = await asyncio.start_server(self._serve, sock=sock, limit=frames.LINE_BYTES)
        port: int = sock.getsockname()[1]
        return port

    def advance(self, generation: int) -> None:
        """A generation is settled: only it and the one before it are of use."""
        self._newest = max(self._newest, generation)
        for old in [number for number in self._rooms if number < self._newest - 1]:
            for visit in self._rooms.pop(old).visits:
                visit.cancel()  # it may be waiting for somebody who will never come

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for guest in self._guests:
            guest.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._guests.add(writer)
        try:
            _, hello = frames.parse(await reader.readline())
            generation = int(hello["generation"])
            if hello["token"] != self.token or generation < self._newest - 1:
                return
            room = self._rooms.setdefault(generation, Room())
            visit = asyncio.current_task()
            assert visit is not None
            room.visits.add(visit)
            visit.add_done_callback(room.visits.discard)
            while text := await reader.readline():
                kind, fields = frames.parse(text)
                writer.write(frames.line("answer", **await self._answer(room, kind, fields)))
        except (OSError, ValueError, KeyError, TypeError, asyncio.CancelledError):
            pass  # whoever breaks off, is no guest or waits in vain is of no interest to the others
        finally:
            self._guests.discard(writer)
            writer.close()

    async def _answer(self, room: Room, kind: str, fields: dict[str, Any]) -> dict[str, Any]:
        values = room.values
        match kind:
            case "set":
                values[fields["key"]] = fields["value"]
            case "add":
                values[fields["key"]] = str(int(values.get(fields["key"], "0")) + int(fields["amount"]))
            case "wait":
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._until(room, fields["keys"]), fields["timeout_s"])
                found = [values.get(key) for key in fields["keys"]]
                return {"values": found if None not in found else None}
            case _:
                raise ValueError(f"{kind!r} is no request")
        async with room.news:
            room.news.notify_all()
        return {"value": values[fields["key"]]}

    async def _until(self, room: Room, keys: list[str]) -> None:
        async with room.news:
            await room.news.wait_for(lambda: all(key in room.values for key in keys))
