"""Planted faults: each replaces one text of a file of ``src/pelton``, and names the rounds that are to find it.

A judge counts only if it finds what is wrong. ``python -m tests.proof --mutants`` plays them (``sabotage.py``); those
that are not found are holes of the judges.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Mutant(NamedTuple):
    """A planted fault: what it does, in which file, the text that is there once, what stands there instead.

    ``judges`` are kinds of rounds, the likeliest first; ``KIND:NUMBER`` begins with that number.
    """

    name: str
    file: str
    text: str
    instead: str
    judges: tuple[str, ...]


_STORAGE: Final = (
    Mutant(
        "the log is not synced",
        "storage/wal.py",
        "            self._sync_file(self._descriptor)\n",
        "            pass\n",
        ("power",),
    ),
    Mutant(
        "a failed sync is not told to other openers",
        "storage/wal.py",
        "            self._slot.fail()\n            raise Fault(",
        "            raise Fault(",
        ("power",),
    ),
    Mutant(
        "a failed sync is taken for one that succeeded",
        "storage/wal.py",
        "            self._slot.fail()\n            raise Fault(",
        "            return\n            raise Fault(",
        ("power",),
    ),
    Mutant(
        "a log in doubt is taken over as it is",
        "storage/wal_repair.py",
        "                if not _mend(path, _frames(connect()), medium):\n                    return False\n",
        "",
        ("power",),
    ),
    Mutant(
        "one frame is left out as a log is written again",
        "storage/wal_repair.py",
        "        _write_all(descriptor, portion, offset, write_file)\n    return True",
        "        _write_all(descriptor, portion[:-4200], offset, write_file)\n    return True",
        ("power",),
    ),
    Mutant(
        "the checksum of a message is not verified",
        "storage/messages.py",
        "    try:\n        return row_checksum(seq, ts, subject, hdr, data) == crc\n",
        "    try:\n        return True\n",
        ("damage",),
    ),
    Mutant(
        "the checksums of many messages are not verified",
        "consumers/deliver.py",
        "        if self._is_simple and len(stored) == len(rows) and all_intact(stored):",
        "        if self._is_simple and len(stored) == len(rows):",
        ("damage",),
    ),
    Mutant(
        "new messages are delivered without a look at their checksums",
        "consumers/deliver.py",
        "            if found and (self._is_simple or (is_last and self._fit(found))) and all_intact(found):",
        "            if found and (self._is_simple or (is_last and self._fit(found))):",
        ("damage",),
    ),
    Mutant(
        "a migration leaves the deliveries behind",
        "storage/schema.py",
        "INSERT INTO {_STATES} SELECT * FROM pending;\n",
        "",
        ("migrations",),
    ),
)
_STREAMS: Final = (
    Mutant(
        "the duplicate window is ignored",
        "streams/publish_checks.py",
        "    duplicate = target.reader.known_id(asked.msg_id, now) if asked.msg_id else None\n",
        "    duplicate = None\n",
        ("models:0+11", "programs"),
    ),
    Mutant(
        "message ids are forgotten after a restart",
        "streams/state.py",
        '            self._db.executemany("INSERT INTO ids VALUES(?, ?, ?, ?)", self._fresh)\n',
        "",
        ("models:0+11", "programs"),
    ),
    Mutant(
        "the subjects of removed messages are not counted",
        "streams/remover.py",
        "        state.subjects.remove(removed)\n",
        "",
        ("programs", "models:0+11"),
    ),
    Mutant(
        "a purge of everything is not counted in bytes",
        "streams/remover.py",
        "        state.msgs = state.bytes = 0\n        state.first = state.last + 1\n",
        "        state.msgs = 0\n        state.first = state.last + 1\n",
        ("models:0+11", "programs"),
    ),
    Mutant(
        "a full stream keeps one message more",
        "streams/remover.py",
        "        excess = state.msgs - config.max_msgs if config.max_msgs > 0 else 0\n",
        "        excess = state.msgs - config.max_msgs - 1 if config.max_msgs > 0 else 0\n",
        ("programs", "models:0+11"),
    ),
    Mutant(
        "a limit for each subject keeps one message more",
        "streams/remover.py",
        "        excess = row.msgs - limit\n",
        "        excess = row.msgs - limit - (limit > 1)\n",
        ("programs", "models:0+11"),
    ),
    Mutant(
        "a removed subject leaves no marker",
        "streams/log.py",
        "        if wanted and appender.state.subject_row(subject).msgs <= 0:\n",
        "        if wanted and appender.state.subject_row(subject).msgs < 0:\n",
        ("models:3+11", "programs"),
    ),
    Mutant(
        "a schedule fires twice",
        "streams/log.py",
        "    _produce(appender, firing.subject, hdr, row.data, schedule, following, now)\n    if",
        "    _produce(appender, firing.subject, hdr, row.data, schedule, following, now)\n"
        "    _produce(appender, firing.subject, hdr, row.data, schedule, following, now)\n    if",
        ("models:3+11", "jobs"),
    ),
    Mutant(
        "a schedule does not fire after its first time",
        "streams/log.py",
        "        state.timers.put(msgspec.structs.replace(firing, due=following))\n",
        "        state.timers.stop(firing.subject)\n",
        ("models:3+11",),
    ),
    Mutant(
        "a message expires too late",
        "streams/timers.py",
        "(self._stream, min(now, NEVER - 1), limit)",
        "(self._stream, min(now, NEVER - 1) - 999_999_999, limit)",
        ("models:3+11",),
    ),
    Mutant(
        "an expected last sequence is not compared",
        "streams/publish_checks.py",
        "            if asked.expected is not None or rest is not None:\n                _check_sequences(",
        "            if rest is not None:\n                _check_sequences(",
        ("histories", "programs", "models:0+11"),
    ),
)
_CONSUMERS: Final = (
    Mutant(
        "an ack of an old delivery is accepted",
        "consumers/settle.py",
        "        if found.dseq != ack.consumer_seq and not ack.is_of_any:\n"
        "            return self._rejected(ack, _REPLACED)\n"
        "        after = AFTER_ACK[ack.kind]\n        if after",
        "        after = AFTER_ACK[ack.kind]\n        if after",
        ("tokens", "models:1+11", "storm"),
    ),
    Mutant(
        "an ack of an old delivery is accepted if it comes alone",
        "consumers/settle.py",
        "=? AND dseq=? AND seq<",
        "=? AND ifnull(?, 1) AND seq<",
        ("tokens", "models:1+11", "storm"),
    ),
    Mutant(
        "acks of old deliveries are accepted if there are many",
        "consumers/settle.py",
        "        if not done.items() <= held.items() or any(",
        "        if not done.keys() <= held.keys() or any(",
        ("tokens", "models:1+11", "storm"),
    ),
    Mutant(
        "an ack of a deleted consumer's delivery is accepted",
        "consumers/settle.py",
        "        return TOKEN_EPOCH <= ack.token <= self._c.token_floor\n",
        "        return False\n",
        ("tokens", "storm"),
    ),
    Mutant(
        "max_deliver is off by one",
        "consumers/deliver.py",
        "        if 0 < c.config.max_deliver <= deliveries:\n",
        "        if 0 < c.config.max_deliver < deliveries:\n",
        ("models:2+11", "models:1+11", "programs"),
    ),
    Mutant(
        "a work queue keeps what was acknowledged",
        "consumers/settle.py",
        '    elif consumer.log.config.retention == "workqueue":\n',
        "    elif False:\n",
        ("power", "programs", "models:1+11"),
    ),
    Mutant(
        "interest retention forgets that others want a message",
        "consumers/settle.py",
        "            left.sequences -= left.wanted_by(consumer)\n",
        "            left.wanted_by(consumer)\n",
        ("models:5+11", "programs"),
    ),
    Mutant(
        "max_ack_pending is off by one",
        "consumers/deliver.py",
        "        return not self._full and not self._held and len(self._out) < self._batch and c.unsettled < c.room\n",
        "        return not self._full and not self._held and len(self._out) < self._batch and c.unsettled <= c.room\n",
        ("models:1+11", "programs"),
    ),
    Mutant(
        "a key is free before its job has settled",
        "consumers/claims.py",
        "            is_held = claims.held < limit and not claims.has_parked\n",
        "            is_held = claims.held <= limit and not claims.has_parked\n",
        ("jobs", "models:1+11", "storm"),
    ),
    Mutant(
        "a key stays taken after its job has settled",
        "consumers/claims.py",
        "        self._promote(freed, [subject for subject, _ in settled])\n",
        "",
        ("jobs", "models:1+11", "storm"),
    ),
    Mutant(
        "a transaction leaves out its acks",
        "engine/transactions.py",
        "            self._settling.settlement.write()\n",
        "",
        ("models:4+11", "storm"),
    ),
    Mutant(
        "a block within a transaction is not undone",
        "engine/transactions.py",
        "        self._do(operations.keep if keep else operations.go_back, mark)\n",
        "        self._do(operations.keep, mark)\n",
        ("models:4+11", "cancelled"),
    ),
    Mutant(
        "a batch that is refused leaves its first messages",
        "engine/transactions.py",
        "        except PeltonError:\n            self.go_back(mark)\n            raise\n        self.keep(mark)\n",
        "        except PeltonError:\n            self.keep(mark)\n            raise\n        self.keep(mark)\n",
        ("models:4+11",),
    ),
    Mutant(
        "a fencing token is given again",
        "engine/session/consumers.py",
        "        if given:\n            self._db.execute(",
        "        if False:\n            self._db.execute(",
        ("tokens", "storm"),
    ),
)
_BUCKETS_AND_LOCKS: Final = (
    Mutant(
        "an update does not compare its revision",
        "buckets/bucket.py",
        "self._coding.target(key), await self._data(key, value), revision, ttl)\n",
        "self._coding.target(key), await self._data(key, value), None, ttl)\n",
        ("histories",),
    ),
    Mutant(
        "a key is created though it exists",
        "buckets/bucket.py",
        '        if operation_of(last.hdrs) == "put":\n            raise BucketKeyExistsError(self.name, key)\n',
        "",
        ("histories",),
    ),
    Mutant(
        "a delete does not compare its revision",
        "buckets/bucket.py",
        '        await self._mark(key, {OPERATION_HEADER: "DEL"}, revision, None)\n',
        '        await self._mark(key, {OPERATION_HEADER: "DEL"}, None, None)\n',
        ("histories",),
    ),
    Mutant(
        "a deleted key still has a value",
        "buckets/bucket.py",
        '        if entry is None or entry.operation != "put":\n',
        "        if entry is None:\n",
        ("histories",),
    ),
    Mutant(
        "a lock is taken without a look at who has it",
        "locks/lock_table.py",
        "expected_last_subject_seq=expected, ttl=ttl)).seq\n",
        "ttl=ttl)).seq\n",
        ("locks", "storm"),
    ),
    Mutant(
        "a lock's lease counts from the answer to its renewal",
        "locks/keeper.py",
        "    return ClockReading(asked.boot, min(asked.wall, answered.wall))\n",
        "    return answered\n",
        ("locks",),
    ),
    Mutant(
        "a lock is taken over before its lease is over",
        "locks/acquisition.py",
        "        return self.seen + (self.holder.ttl + _GRACE_S if self.holder is not None else self.doubt)\n",
        "        return self.seen + (self.holder.ttl / 2 if self.holder is not None else self.doubt)\n",
        ("locks",),
    ),
    Mutant(
        "a lock is still held when its lease is over",
        "locks/keeper.py",
        '        return self.state != "held" or self.clock.is_over(now.boot, self._wall(now))\n',
        '        return self.state != "held"\n',
        ("locks",),
    ),
    Mutant(
        "a leader leads on when its term is over",
        "locks/campaign.py",
        "        if now >= self.stands_until:\n",
        "        if False:\n",
        ("elections",),
    ),
    Mutant(
        "a new leader does not wait for the old one",
        "locks/campaign.py",
        '        elif observation.kind == "put" or self._seen < 0 or observation.revision != self._seen + 1:\n'
        "            self.clear_at = now + self.ttl * CLEAR\n",
        "",
        ("elections",),
    ),
)
_QUEUE: Final = (
    Mutant(
        "a step is done twice",
        "queue/run/steps.py",
        "            return codec.decode(done.result)\n        await self._begin(subject)\n\n        async def keep",
        "            pass\n        await self._begin(subject)\n\n        async def keep",
        ("jobs",),
    ),
    Mutant(
        "a failed job leaves no dead letter",
        "queue/model/records.py",
        "            notes = (*notes, self._letter(outcome))\n",
        "            pass\n",
        ("jobs",),
    ),
    Mutant(
        "a job has one attempt more",
        "queue/run/leased_jobs.py",
        "            elif records.attempt > rules.max_attempts:\n",
        "            elif records.attempt > rules.max_attempts + 1:\n",
        ("storm:6", "jobs"),
    ),
    Mutant(
        "attempts are counted that never began",
        "queue/model/records.py",
        "            self.attempt = self.delivered.num_delivered - known.returned\n",
        "            self.attempt = self.delivered.num_delivered\n",
        ("storm", "jobs"),
    ),
    Mutant(
        "a limit lets one job more run",
        "queue/model/limits.py",
        "            if self._count_held() - replaced >= limit.concurrency:\n",
        "            if self._count_held() - replaced > limit.concurrency:\n",
        ("limits", "jobs", "storm"),
    ),
    Mutant(
        "slots of other workers are not counted",
        "queue/model/limits.py",
        "        return len(self._mine) + sum(map(len, self._others.values()))\n",
        "        return len(self._mine)\n",
        ("limits", "jobs", "storm"),
    ),
    Mutant(
        "a slot is never given back",
        "queue/run/admission.py",
        "                self._return(job, self.slots.pop(seq))\n",
        "                self.slots.pop(seq)\n",
        ("limits", "jobs", "storm"),
    ),
    Mutant(
        "a rate is not charged",
        "queue/model/limits.py",
        "            self._ahead = max(self._ahead, self._now) + self._interval\n",
        "            self._ahead = max(self._ahead, self._now)\n",
        ("limits", "jobs"),
    ),
    Mutant(
        "a pause is forgotten by a worker that starts anew",
        "queue/run/fetch.py",
        'ack_policy="none", deliver_policy="last_per_subject", filter_subject=">"',
        'ack_policy="none", deliver_policy="new", filter_subject=">"',
        ("jobs",),
    ),
    Mutant(
        "a paused key is not paused",
        "queue/model/limits.py",
        "        if key in self._paused_keys:\n            return _of_key(key)\n",
        "",
        ("jobs",),
    ),
    Mutant(
        "a cancelled job runs",
        "queue/model/limits.py",
        "        return None if reason is None else JobCancelledError(job_id, key, reason)\n",
        "        return None\n",
        ("simulation", "jobs"),
    ),
    Mutant(
        "a second unfinished job of a unique name is stored",
        "queue/enqueuer.py",
        "        return None, self._handle(job_id, call.results, True)\n",
        "        form = JobMessage(names, call.job, exclusive=self._queue.exclusive)\n"
        "        return form.following(message, stored.seq), None\n",
        ("simulation", "jobs"),
    ),
    Mutant(
        "what a job has left of its earlier attempts is not read",
        "queue/run/leased_jobs.py",
        "                job.records.learn(await self.source.earlier_attempt(job.records.delivered))\n",
        "                await self.source.earlier_attempt(job.records.delivered)\n",
        ("storm", "jobs"),
    ),
    Mutant(
        "a job of a flow starts before those that it waits for",
        "queue/progress.py",
        "        self._open = [len(spec.after) for spec in specs]\n",
        "        self._open = [min(len(spec.after), 1) for spec in specs]\n",
        ("jobs", "simulation"),
    ),
    Mutant(
        "a job of a flow runs though one before it has failed",
        "queue/progress.py",
        '            if self.specs[after].on_failure == "cancel":\n                self._bad[after] += bad\n',
        "",
        ("jobs", "simulation"),
    ),
    Mutant(
        "a job's result does not reach its flow",
        "queue/progress.py",
        "                self.results[node] = event.result\n",
        "                pass\n",
        ("jobs", "simulation"),
    ),
)
_SIMULATED: Final = (
    Mutant(
        "a sleep of a job is over at once",
        "queue/run/steps.py",
        "        until = now + int(limit * 1e9) if record is None else record.until\n",
        "        until = now + int(limit * 5e8) if record is None else record.until\n",
        ("simulation",),
    ),
    Mutant(
        "a schedule fires twice for each time",
        "streams/log.py",
        "    _produce(appender, firing.subject, hdr, row.data, schedule, following, now)\n    if",
        "    _produce(appender, firing.subject, hdr, row.data, schedule, following, now)\n"
        "    _produce(appender, firing.subject, hdr, row.data, schedule, following, now)\n"
        "    if",
        ("simulation",),
    ),
    Mutant(
        "a schedule misses every second time",
        "streams/log.py",
        "        state.timers.put(msgspec.structs.replace(firing, due=following))\n",
        "        state.timers.put(msgspec.structs.replace(firing, due=2 * following - firing.due))\n",
        ("simulation",),
    ),
    Mutant(
        "the slots of running jobs are not extended",
        "queue/run/leases.py",
        "        for ack in acks:\n            for place in self._slots.get(ack.seq, ()):\n",
        "        for ack in acks[:0]:\n            for place in self._slots.get(ack.seq, ()):\n",
        ("simulation",),
    ),
    Mutant(
        "leases of jobs are not extended",
        "queue/run/leases.py",
        "if not lease.lost and lease.clock.is_due(now)]\n",
        "if False]\n",
        ("simulation",),
    ),
)
MUTANTS: Final[tuple[Mutant, ...]] = (
    *_STORAGE, *_STREAMS, *_CONSUMERS, *_BUCKETS_AND_LOCKS, *_QUEUE, *_SIMULATED,
)  # fmt: skip
