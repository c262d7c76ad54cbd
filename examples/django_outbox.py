"""Django's own database and a queue: rows and jobs together, by an outbox.

The ORM's database and the store are two, so no transaction covers both. What works: the row that says what is to be
done is written in the ORM's transaction (the outbox), and a relay moves such rows into the queue. The relay notes in
the store which rows it has moved, in the transaction that enqueues the jobs, and then deletes them: a relay that is
killed anywhere loses no row and moves none twice. Several relays do not harm each other: the note of one makes that
of another fail, with its jobs.

Install ``pelton[django]``. Prints::

    2 orders, 2 in the outbox, 0 jobs
    moved 2
    0 in the outbox, 2 jobs
    killed before it has emptied the outbox: 1 there; moved 0 more
    0 in the outbox, 3 jobs
"""

import json
from contextlib import suppress
from typing import Any
from unittest import mock

import django
from django.conf import settings

import pelton

settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}})
django.setup()

from django.db import connection, models, transaction  # noqa: E402  # after the settings
from django.db.models import QuerySet  # noqa: E402


class Order(models.Model):  # type: ignore[misc]
    amount = models.DecimalField(max_digits=9, decimal_places=2)

    class Meta:
        app_label = "shop"


class Outbox(models.Model):  # type: ignore[misc]
    job = models.TextField()
    arguments = models.TextField()

    class Meta:
        app_label = "shop"


def place_order(amount: float) -> None:
    with transaction.atomic():
        order = Order.objects.create(amount=amount)
        Outbox.objects.create(job="invoice", arguments=json.dumps({"order": order.pk}))


class OutboxRelay:
    """Moves rows of the outbox into a queue; call `move` in a loop, or from ``transaction.on_commit``."""

    def __init__(self, jet: Any) -> None:
        self.jet = jet
        self.queue = jet.queue("shop")
        self.moved = jet.create_bucket("outbox")

    def move(self, most: int = 100) -> int:
        """Return how many rows were moved. Raises WrongLastSequenceError if another relay was first: call it again."""
        revision = self.delete_moved()
        rows = list(Outbox.objects.order_by("pk")[:most])
        if rows:
            with self.jet.transaction() as tx:
                for row in rows:
                    tx.queue(self.queue).enqueue(row.job, **json.loads(row.arguments))
                tx.bucket(self.moved).update("shop", json.dumps([row.pk for row in rows]).encode(), revision)
            self.delete_moved()
        return len(rows)

    def delete_moved(self) -> int:
        """Delete the rows that were moved, by whichever relay; return the revision of the note."""
        try:
            note = self.moved.get("shop")
        except pelton.BucketKeyNotFoundError:
            return 0
        Outbox.objects.filter(pk__in=json.loads(note.value)).delete()
        return int(note.revision)


def main() -> None:
    with connection.schema_editor() as schema:
        schema.create_model(Order)
        schema.create_model(Outbox)
    with pelton.sync.open("shop.pelton") as jet:
        relay = OutboxRelay(jet)
        place_order(19.90)
        place_order(5)
        orders, waiting = Order.objects.count(), Outbox.objects.count()
        print(f"{orders} orders, {waiting} in the outbox, {relay.queue.counts().pending} jobs")
        print("moved", relay.move())
        print(f"{Outbox.objects.count()} in the outbox, {relay.queue.counts().pending} jobs")
        place_order(7)
        with mock.patch.object(QuerySet, "delete", side_effect=[None, SystemExit]), suppress(SystemExit):
            relay.move()
        print(f"killed before it has emptied the outbox: {Outbox.objects.count()} there; moved {relay.move()} more")
        print(f"{Outbox.objects.count()} in the outbox, {relay.queue.counts().pending} jobs")


if __name__ == "__main__":
    main()
