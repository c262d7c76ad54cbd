"""The classes that Celery wants to be derived from. They have no type information: checkers take these stand-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class BaseResultConsumer:
        """Waits for results."""

        backend: Any

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def _after_fork(self) -> None: ...

        def on_state_change(self, _meta: Any, _message: Any) -> None:
            """Handle a result."""

    class AsyncBackendMixin:
        """Lets results arrive."""

    class BaseKeyValueStoreBackend:
        """Keeps results as keys and values."""

        app: Any
        accept: Any
        expires: Any
        _pending_results: Any
        _pending_messages: Any

        def __init__(self, *_args: Any, **_options: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

        def __reduce__(self, _args: Any = (), _kwargs: Any = None) -> Any: ...

        def _apply_chord_incr(self, header_result_args: Any, body: Any, **kwargs: Any) -> Any: ...

        def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
            """Note a part of a chord that has ended."""

else:
    from celery.backends.asynchronous import AsyncBackendMixin, BaseResultConsumer
    from celery.backends.base import BaseKeyValueStoreBackend

__all__ = ["AsyncBackendMixin", "BaseKeyValueStoreBackend", "BaseResultConsumer"]
