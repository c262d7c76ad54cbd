"""What the driver does when all tasks have staged their rows: one transaction that stores them, and notes the batch.

From its beginning to its end nobody else writes to the store; readers go on, and see all of the batch or nothing.
Memory holds one portion of the staged rows (8 MiB) at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pelton import engine
from pelton.api import WrongLastSequenceError
from pelton.jet import Savepoint
from pelton.spark.ledger import Ledger
from pelton.spark.names import LEDGER
from pelton.spark.place import Place, key_of
from pelton.spark.sums import placed_sums

if TYPE_CHECKING:
    from pelton.api import Outgoing
    from pelton.jet import Streams
    from pelton.spark.attempts import Batch
    from pelton.spark.options import PlaceOptions

_LONGEST_S: Final = 24 * 3600.0


def load(options: PlaceOptions, target: str, files: Sequence[str], batch: Batch | None) -> bool:
    """Store what was staged for the stream ``target``; False where the ``batch`` is stored already.

    None: a batch that is never repeated. Raises what publishing raises; nothing is stored then.
    """
    with Place(options) as place:
        if batch is None:
            place.run(_store, place.jet, options, files, None)
            return True
        return place.run(_store_once, place.jet, options, files, Ledger(place.jet, target), batch)


async def _store_once(jet: Streams, options: PlaceOptions, files: Sequence[str], ledger: Ledger, batch: Batch) -> bool:
    await ledger.prepare()
    while True:
        entry = await ledger.look(batch)
        if entry.is_done(batch):
            return False
        try:
            await _store(jet, options, files, ledger.message(batch, entry, done=True))
        except WrongLastSequenceError as error:
            if error.stream != LEDGER:
                raise
            # Somebody else has just written the same batch down.
            continue
        return True


async def _store(jet: Streams, options: PlaceOptions, files: Sequence[str], note: Outgoing | None) -> None:
    transaction = jet.backend.transaction(_LONGEST_S)
    async with Savepoint(transaction):
        if note is not None:
            await transaction.publish([note])
        for path in files:
            await engine.load(transaction, path, key_of(options), placed_sums)
