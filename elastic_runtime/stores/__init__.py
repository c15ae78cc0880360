"""Where the membership header lives: small JSON documents behind three operations.

`base` is the contract, `memory` a fake that passes the same tests as the real ones, `tcp` the embedded store.
`tcp` imports torch, so it is imported by those who need it and not from here.
"""

from elastic_runtime.stores.base import Entry, Store

__all__ = ["Entry", "Store"]
