"""Reads long ranges of web servers by obstore, which takes less of the processor for TLS."""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib.util
import os
import threading
from typing import Any

from . import errors, loop
from .exchange import Resolved
from .http import HttpReader
from .settings import Settings

# A shorter read is sent on a connection of HttpReader, which exists already.
_FEWEST_BYTES = 1 << 20
# After as many failures in a row, all reads are HttpReader's.
_MAX_FAILURES = 3
# Other headers would follow a redirect to another host.
_KEPT_HOME = frozenset({"authorization", "cookie"})


def is_wanted() -> bool:
    """Returns whether obstore is installed, and SAFETENSORS_HTTP_ENGINE is not "python".

    Raises:
        SafetensorError: the variable has another value than "obstore" and "python".
    """
    engine = os.environ.get("SAFETENSORS_HTTP_ENGINE", "").strip().lower()
    if engine not in ("", "obstore", "python"):
        raise errors.refused("", "SAFETENSORS_HTTP_ENGINE is neither obstore nor python")
    return engine != "python" and importlib.util.find_spec("obstore") is not None


class HttpsReader(HttpReader):
    """An HttpReader that reads long ranges by obstore, where nothing is lost by it.

    obstore follows redirects unseen and does not check the peer, so it is used only for the final
    URL, by TLS with verified certificates, with a strong ETag, which every answer must have. If it
    fails for whatever reason, HttpReader reads the range, by its own rules and with its own errors.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what HttpReader takes."""
        super().__init__(*args, **kwargs)
        self._making = threading.Lock()
        self._store: tuple[Resolved, Any] | None = None
        self._calls = loop.Calls()
        self._failures = 0

    def read(self, offset: int, nbytes: int) -> Any:
        """Returns exactly these bytes; see HttpReader."""
        resolved = self.resolved
        if self._is_fit(resolved, nbytes):
            try:
                data = self._calls.run(self._by_store(resolved, offset, nbytes))
            except concurrent.futures.CancelledError:
                raise errors.failed(self.name, "the read was cancelled") from None
            except Exception:
                data = None
            if data is not None:
                self._failures = 0
                return data
            self._failures += 1
        return super().read(offset, nbytes)

    def _safetensors_fill(self, offset: int, view: memoryview) -> bool:
        """Reads into a view, but for what obstore reads, into memory of its own."""
        if self._is_fit(self.resolved, len(view)):
            return False
        return super()._safetensors_fill(offset, view)

    def cancel(self) -> None:
        """Ends all reads that are under way with an error. Later ones work."""
        super().cancel()
        self._calls.cancel()

    def _is_fit(self, resolved: Resolved, nbytes: int) -> bool:
        settings = self._settings
        return (
            nbytes >= _FEWEST_BYTES
            and resolved.url.scheme == "https"
            and resolved.version.is_strong
            and self._in_order is None
            and settings.verify
            and _KEPT_HOME.issuperset(name.lower() for name in resolved.headers)
            and self._failures < _MAX_FAILURES
            and not self._closed
            and not self._is_forked()
            and not loop.is_forked()
        )

    async def _by_store(self, resolved: Resolved, offset: int, nbytes: int) -> Any:
        """Returns the bytes; None if the answer is not what was asked for."""
        return await asyncio.wait_for(
            self._range_of_store(resolved, offset, nbytes), self._settings.timeout
        )

    async def _range_of_store(self, resolved: Resolved, offset: int, nbytes: int) -> Any:
        import obstore

        version = resolved.version
        options: Any = {"range": (offset, offset + nbytes), "if_match": version.etag}
        result = await obstore.get_async(self._store_of(resolved), "", options=options)
        meta = result.meta
        if meta["size"] != version.size or meta["e_tag"] != version.etag:
            return None
        if tuple(result.range) != (offset, offset + nbytes):
            return None
        data = await result.bytes_async()
        return data if len(data) == nbytes else None

    def _store_of(self, resolved: Resolved) -> Any:
        with self._making:
            if self._store is None or self._store[0] is not resolved:
                self._store = resolved, _store(resolved, self._settings)
            return self._store[1]


def _store(resolved: Resolved, settings: Settings) -> Any:
    from obstore import store

    from . import objects

    client: Any = objects.client_options(settings, resolved.headers)
    # One try: HttpReader makes the others.
    return store.HTTPStore.from_url(
        resolved.url.text, client_options=client, retry_config={"max_retries": 0}
    )
