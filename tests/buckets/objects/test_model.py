"""An object store compared with a dict: both always hold the same, and nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import pelton

_NAMES = st.sampled_from(["a", "b/c", "ä"])
_CONTENTS = st.binary(max_size=60)


class Objects(RuleBasedStateMachine):
    """Links point to a name, as in a store."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._jet: Any = self._run(_opened())
        self._store: Any = self._run(self._jet.create_objects("files"))
        self._model: dict[str, bytes | str] = {}

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def teardown(self) -> None:
        self._run(self._jet.close())
        self._loop.close()

    @rule(name=_NAMES, content=_CONTENTS, chunk_size=st.integers(min_value=1, max_value=50))
    def put(self, name: str, content: bytes, chunk_size: int) -> None:
        self._run(self._store.put(name, content, chunk_size=chunk_size))
        self._model[name] = content

    @rule(name=_NAMES, content=_CONTENTS)
    def put_and_fail(self, name: str, content: bytes) -> None:
        def broken() -> Any:
            yield content
            raise InterruptedError

        assert isinstance(self._error(self._store.put(name, broken(), chunk_size=7)), InterruptedError)

    @rule(name=_NAMES)
    def delete(self, name: str) -> None:
        error = self._error(self._store.delete(name))
        assert isinstance(error, pelton.ObjectNotFoundError) is (self._model.pop(name, None) is None)

    @rule(name=_NAMES, new_name=_NAMES)
    def rename(self, name: str, new_name: str) -> None:
        error = self._error(self._store.update(name, new_name=new_name))
        if name not in self._model:
            assert isinstance(error, pelton.ObjectNotFoundError)
        elif name != new_name and new_name in self._model:
            assert isinstance(error, pelton.ObjectExistsError)
        else:
            assert error is None
            self._model[new_name] = self._model.pop(name)

    @rule(name=_NAMES, to=_NAMES)
    def link(self, name: str, to: str) -> None:
        if to not in self._model:
            return
        error = self._error(self._store.add_link(name, self._run(self._store.info(to))))
        if isinstance(self._model[to], str):
            assert isinstance(error, pelton.ObjectLinkError)
        elif isinstance(self._model.get(name), bytes):
            assert isinstance(error, pelton.ObjectExistsError)
        else:
            assert error is None
            self._model[name] = to

    def _error(self, work: Any) -> Exception | None:
        try:
            self._run(work)
        except Exception as error:
            return error
        return None

    @invariant()
    def both_hold_the_same(self) -> None:
        self._run(self._check())

    async def _check(self) -> None:
        assert {info.name async for info in self._store.list()} == set(self._model)
        for name, content in self._model.items():
            if isinstance(content, bytes):
                assert await self._store.get(name) == content
            else:
                assert (await self._store.info(name)).link.name == content
        info = await (await self._jet.stream("OBJ_files")).info(subjects_filter="$O.files.C.>")
        stored = sum(1 for content in self._model.values() if isinstance(content, bytes) and content)
        assert len(info.state.subjects or {}) == stored
        assert await self._store.cleanup(older_than=0) == 0


async def _opened() -> pelton.Jet:
    return await pelton.open("memory:")


TestObjects = Objects.TestCase
TestObjects.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
