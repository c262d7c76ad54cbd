"""An agent: a model that uses tools in a loop, and a person who is asked before it spends money.

Prints::

    ann is asked: pay 900 for the lathe Atlas?
    ann is asked: pay 450 for the lathe Bison?
    agent: the lathe Bison is ordered, receipt 450
    the model was asked 5 times, for prices it looked 2 times, paid was once; the function began 3 times
"""

import asyncio
from collections import Counter

import msgspec

import pelton

MOST_TURNS = 20
jobs = pelton.Jobs()
called: Counter[str] = Counter()


class Reply(msgspec.Struct):
    """What the model says: the name of a tool and its arguments, or the answer."""

    tool: str = ""
    arguments: list[str] = []
    answer: str = ""


def model(said: list[str]) -> Reply:
    """Reply as a language model does, which knows nothing but what was said. This one needs no network."""
    called["model"] += 1
    match said[-1].split(": ", 1):
        case ["ann", "no"]:
            return Reply("price", ["lathe", "a cheaper"])
        case ["ann", _]:
            return Reply("price", ["lathe", "any"])
        case ["price", offer]:
            name, price = offer.split()
            return Reply("pay", [price, f"the lathe {name}"])
        case _:
            return Reply(answer=f"the lathe Bison is ordered, {said[-1].removeprefix('pay: ')}")


def price(what: str, which: str) -> str:
    called["price"] += 1
    return "Bison 450" if which == "a cheaper" else "Atlas 900"


def pay(amount: str, what: str) -> str:
    called["pay"] += 1
    return f"receipt {amount}"


TOOLS = {"price": price, "pay": pay}
NEEDS_A_PERSON = {"pay"}


@jobs.job
async def agent(context: pelton.JobContext, task: str) -> str:
    """Ask the model what to do, and do it, until it has an answer. Each reply is paid for once, whatever dies."""
    called["agent"] += 1
    said = [f"ann: {task}"]
    questions = 0
    for turn in range(MOST_TURNS):
        reply = await context.step(f"turn {turn}", model, said)
        if not reply.tool:
            return reply.answer
        if reply.tool in NEEDS_A_PERSON:
            questions += 1
            await context.publish(f"question {questions}", f"{reply.tool} {' for '.join(reply.arguments)}?")
            # It may take days: until then, nothing of the agent is in memory.
            if not await context.wait_for("allowed", bool, timeout=7 * 86_400, default=False):
                said.append("ann: no")
                continue
        found = await context.step(f"{reply.tool} of turn {turn}", TOOLS[reply.tool], *reply.arguments)
        said.append(f"{reply.tool}: {found}")
    raise pelton.PermanentJobError(f"no answer after {MOST_TURNS} turns")


async def main() -> None:
    async with pelton.open("agents.pelton") as jet:
        agents = await jet.queue("agents", jobs=jobs)
        worker = asyncio.create_task(agents.work())
        job = await agents.enqueue(agent, "buy a lathe")
        for number, is_allowed in ((1, False), (2, True)):
            print(f"ann is asked: {await job.event(f'question {number}')}")
            while (await job.info()).state != "waiting":
                await asyncio.sleep(0.01)
            await job.send("allowed", is_allowed)
        print(f"agent: {await job.value(timeout=30)}")
        print(
            f"the model was asked {called['model']} times, for prices it looked {called['price']} times, "
            f"paid was {'once' if called['pay'] == 1 else 'again'}; the function began {called['agent']} times"
        )
        agents.stop()
        await worker


asyncio.run(main())
