"""Start and stop do their work once, in every order of calls."""

import asyncio

import pytest

from pelton.runtime import Service, ServiceState


class Recorder(Service):
    """Records its calls; a given error makes the start fail."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.calls: list[str] = []
        self._error = error

    async def _on_start(self) -> None:
        self.calls.append("start")
        await asyncio.sleep(0)
        if self._error is not None:
            raise self._error

    async def _on_stop(self) -> None:
        self.calls.append("stop")
        await asyncio.sleep(0)


async def test_context_manager_runs_the_whole_life() -> None:
    service = Recorder()
    states = [service.state]
    async with service as entered:
        assert entered is service
        states.append(service.state)
    states.append(service.state)
    assert states == [ServiceState.NEW, ServiceState.RUNNING, ServiceState.STOPPED]
    assert service.calls == ["start", "stop"]


async def test_concurrent_and_repeated_calls_act_once() -> None:
    service = Recorder()
    await asyncio.gather(service.start(), service.start())
    await service.start()
    await asyncio.gather(service.stop(), service.stop())
    await service.stop()
    assert service.calls == ["start", "stop"]


async def test_stop_before_start_is_final() -> None:
    service = Recorder()
    await service.stop()
    with pytest.raises(RuntimeError, match="Recorder was stopped"):
        await service.start()
    assert service.calls == []


@pytest.mark.parametrize("error", [OSError("disk full"), asyncio.CancelledError()])
async def test_a_failed_start_releases_its_first_half(error: BaseException) -> None:
    service = Recorder(error)
    with pytest.raises(type(error)):
        await service.start()
    await service.stop()
    assert service.state is ServiceState.STOPPED
    assert service.calls == ["start", "stop"]
