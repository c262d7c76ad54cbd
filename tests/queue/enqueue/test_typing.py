"""What a type checker sees of jobs: the function's own type, checked arguments, typed results."""

from __future__ import annotations

from pathlib import Path

from mypy import api

_PROGRAM = """
import pelton
from pelton import sync

jobs = pelton.Jobs()

@jobs.job(max_attempts=3)
async def repair(car: str, what: str = "paint") -> str:
    return car

@jobs.job
def square(n: int) -> int:
    return n * n

@jobs.job
async def with_context(context: pelton.JobContext, n: int) -> bytes:
    return b""

async def charge(order: int, amount: float = 1.0) -> str:
    return ""

async def book(tx: pelton.Transaction, n: int) -> bytes:
    return b""

@jobs.job(backoff=[1, 2])
async def with_steps(context: pelton.JobContext) -> str:
    whole: int = await context.step("square", square.function, 3)
    data: bytes = await context.transaction_step("book", book, 1)
    await context.step("charge", charge, "1")  # wrong
    await context.progress(0.1)
    return await context.step("charge", charge, 1, amount=2.0)

@jobs.job(batch=3)
async def batched(items: list[int]) -> list[str | Exception]:
    return []

@jobs.job(batch=3)
async def noted(items: list[int]) -> None: ...

@jobs.job(process=True, timeout=3)
def in_child(n: int) -> str:
    return ""

async def program(jet: pelton.Jet, tx: pelton.Transaction) -> None:
    called: str = await repair("car1", "wash")
    number: int = square(3) + 1
    garage = await jet.queue("garage", jobs=jobs)
    text: str = await (await garage.enqueue(repair, "car1")).value()
    whole: int = await (await garage.options(key="n").enqueue(square, n=3)).value()
    raw: bytes = await (await garage.enqueue(with_context, 3)).value()
    one: str = await (await batched.enqueue(1)).value()
    nothing: pelton.JobHandle[None] = await garage.enqueue(noted, 1)
    child: str = await (await garage.enqueue(in_child, 1)).value()
    await batched.enqueue("one")  # wrong
    await garage.enqueue("repair", car="car1")
    await garage.enqueue(repair, 1)  # wrong
    await garage.enqueue(square)  # wrong
    await garage.enqueue(with_context, "3")  # wrong
    await garage.options(key="car1").enqueue(repair, car=7)  # wrong
    square("3")  # wrong
    bent: int = await (await garage.enqueue(repair, "car1")).value()  # wrong

    @garage.job
    async def wash(car: str) -> int:
        return 1

    await wash.enqueue("car1")
    await wash.enqueue("car1", key="car1")
    await wash.options(key="car1").enqueue("car1")
    await tx.queue(garage).enqueue(repair, "car1")
    await wash.enqueue(1)  # wrong
    await wash.options(key="car1").enqueue()  # wrong
    await tx.queue(garage).enqueue(repair)  # wrong
    flow = await garage.new_flow()
    node = flow.add(repair, "car1")
    squares = [flow.add(square, n) for n in (1, 2)]
    flow.add(repair, node.result, what=node.result)
    flow.options(after=[node, *squares], on_failure="run", delay=3).add(with_context, squares[0].result)
    flow.add(square, node.result)  # wrong
    flow.add(repair, node)  # wrong
    flow.options(after=[node], on_failure="go")  # wrong
    started = await tx.enqueue_flow(flow)
    result: str = await started.value(node)
    number = await (await started.job(squares[0])).value()
    numbers: str = await started.value(squares[0])  # wrong
    print(await started.value(node))
    maybe: str | None = await started.value(node)
    again: str | None = await (await started.job(node)).value()
    told = await garage.enqueue(repair, "car1")
    wide: pelton.JobHandle[object] = told
    narrow: pelton.JobHandle[int] = told  # wrong
    declared: pelton.FlowHandle[int] = await flow.enqueue()
    last: str = await declared.value()  # wrong
    anything: pelton.FlowHandle = garage.flow("f")

def blocking(jet: sync.Jet) -> None:
    garage = jet.queue("garage", jobs=jobs)
    text: str = garage.enqueue(repair, "car1").value()
    garage.enqueue(square, "3")  # wrong
    flow = garage.new_flow()
    node = flow.add(repair, "car1")
    flow.add(square, node.result)  # wrong
    result: str = flow.enqueue().value(node)
    print(flow.enqueue().value(node))
    declared: sync.FlowHandle[int] = flow.enqueue()
    last: str = declared.value()  # wrong
"""


def test_jobs_are_typed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    said, mistakes, _ = api.run(["--strict", "--no-error-summary", "--hide-error-context", str(program)])
    assert mistakes == ""
    found = {int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line}
    wrong = {number for number, line in enumerate(_PROGRAM.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, said
