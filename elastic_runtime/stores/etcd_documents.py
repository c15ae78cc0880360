"""What stands in etcd under a key: one JSON text with the writer, a nonce and the value."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Any

from elastic_runtime.errors import StoreError
from elastic_runtime.stores.base import NOTHING, Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """`nonce` makes every write's text its own, so that finding it in the store is to have written it."""

    value: dict[str, Any]
    writer: str
    nonce: str


def new_nonce() -> str:
    return secrets.token_hex(8)


def written(text: str, *, writer: str, nonce: str) -> bytes:
    """`text` is the JSON text of the value."""
    head = json.dumps({"writer": writer, "nonce": nonce}, ensure_ascii=False)
    return f'{head[:-1]}, "value": {text}}}'.encode()


def read(kv: Any) -> Document:
    """What a record of etcd's holds."""
    try:
        match json.loads(kv.value):
            case {"value": dict(value), "writer": str(writer), "nonce": str(nonce)}:
                return Document(value=value, writer=writer, nonce=nonce)
    except (ValueError, RecursionError):
        pass
    raise StoreError(f"what etcd holds under {kv.key.decode(errors='replace')!r} was not written by this program")


def entry(kv: Any) -> Entry:
    """A record as an entry; None as the one that stands for nothing."""
    if kv is None:
        return NOTHING
    document = read(kv)
    return Entry(value=document.value, version=int(kv.version), writer=document.writer)
