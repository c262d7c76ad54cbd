"""A web application with Flask: an app factory, jobs enqueued in its requests, pages cached in a bucket.

Install ``pelton[flask,cache]``, then serve it: ``flask --app flask_app run``, or any WSGI server with any number of
processes. Jobs run in their own: ``pelton work flask_app:jobs --store shop.pelton --queue shop``.

Run as a program, it calls itself. Prints::

    202 {'id': '1', 'status': '/invoices/1'}
    {'result': None, 'state': 'pending'}
    {'result': 'order 7: 19.90 CHF', 'state': 'completed'}
    404
"""

import os
from typing import Any

from flask import Flask, abort, current_app, request

import pelton
from pelton.contrib.cachelib import PeltonCache

jobs = pelton.Jobs()


@jobs.job(max_attempts=3)
def invoice(order: int, amount: float) -> str:
    return f"order {order}: {amount:.2f} CHF"


def shop() -> Any:
    """Return the queue, opened by the first request of each process: servers fork after the application is made."""
    opened = current_app.extensions.get("pelton")
    if opened is None or opened[0] != os.getpid():
        jet = pelton.sync.open(current_app.config["STORE"])
        opened = current_app.extensions["pelton"] = (os.getpid(), jet, jet.queue("shop", jobs=jobs))
    return opened[2]


def create_app(store: str = "shop.pelton") -> Flask:
    app = Flask(__name__)
    app.config["STORE"] = store
    cache = PeltonCache(store, bucket="pages", default_timeout=3600)

    @app.post("/invoices")
    def order_invoice() -> Any:
        order, amount = request.form["order"], request.form["amount"]
        # When it returns, the job is on disk; a client that repeats its request gets the same job.
        handle = shop().options(unique=f"order-{order}").enqueue(invoice, int(order), float(amount))
        return {"id": handle.id, "status": f"/invoices/{handle.id}"}, 202

    @app.get("/invoices/<job_id>")
    def invoice_status(job_id: str) -> Any:
        if (found := cache.get(job_id)) is not None:
            return found
        try:
            info = shop().get(job_id)
        except (pelton.JobNotFoundError, pelton.ConfigError):
            abort(404)
        is_done = info.state == "completed"
        status = {"state": info.state, "result": info.outcome.value() if is_done else None}
        if is_done:
            cache.set(job_id, status)
        return status

    return app


def main() -> None:
    app = create_app()
    client = app.test_client()
    answer = client.post("/invoices", data={"order": 7, "amount": 19.9})
    print(answer.status_code, answer.json)
    print(client.get("/invoices/1").json)
    with app.app_context():
        shop().work(until_empty=True)
    for _ in range(2):
        status = client.get("/invoices/1").json
    print(status)
    print(client.get("/invoices/99").status_code)


if __name__ == "__main__":
    main()
