"""A web application that enqueues jobs in its requests and shows how they go, with FastAPI.

Install ``pelton[fastapi]``, then serve it: ``uvicorn web_app:app``, with any number of ``--workers``. Jobs run in
the server's processes; to run them in their own, leave out the lines with ``worker`` and start them with
``pelton work web_app:jobs --store shop.pelton --queue shop --processes 2``.

Run as a program, it calls itself. Prints::

    202 {'id': '1', 'status': '/invoices/1'}
    {'state': 'completed', 'attempt': 1, 'result': 'order 7: 19.90 CHF'}
    404
    422
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.testclient import TestClient

import pelton

jobs = pelton.Jobs()


@jobs.job(max_attempts=3)
async def invoice(order: int, amount: float) -> str:
    return f"order {order}: {amount:.2f} CHF"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    async with pelton.open("shop.pelton") as jet:
        shop = await jet.queue("shop", jobs=jobs)
        worker = asyncio.create_task(shop.work())
        yield {"shop": shop}
        shop.stop()
        await worker


app = FastAPI(lifespan=lifespan)


def shop_queue(request: Request) -> pelton.Queue:
    queue: pelton.Queue = request.state.shop
    return queue


Shop = Annotated[pelton.Queue, Depends(shop_queue)]


@app.post("/invoices", status_code=202)
async def order_invoice(order: int, amount: float, shop: Shop) -> dict[str, str]:
    # When it returns, the job is on disk; a client that repeats its request gets the same job.
    handle = await shop.options(unique=f"order-{order}").enqueue(invoice, order, amount)
    return {"id": handle.id, "status": f"/invoices/{handle.id}"}


@app.get("/invoices/{job_id}")
async def invoice_status(job_id: str, shop: Shop) -> dict[str, Any]:
    try:
        info = await shop.get(job_id)
    except (pelton.JobNotFoundError, pelton.ConfigError):
        raise HTTPException(404) from None
    done = info.outcome is not None and info.state == "completed"
    return {
        "state": info.state,
        "attempt": info.attempt,
        "result": info.outcome.value() if done and info.outcome else None,
    }


def main() -> None:
    with TestClient(app) as client:
        answer = client.post("/invoices", params={"order": 7, "amount": 19.9})
        print(answer.status_code, answer.json())
        status: dict[str, Any] = {}
        while status.get("state") != "completed":
            status = client.get(answer.json()["status"]).json()
        print(status)
        print(client.get("/invoices/99").status_code)
        print(client.post("/invoices", params={"order": "seven"}).status_code)


if __name__ == "__main__":
    main()
