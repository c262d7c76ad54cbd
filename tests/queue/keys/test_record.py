"""The states of a key's record, step by step."""

from pelton.queue.key_table import (
    KeyRecord,
    Posted,
    carried_out,
    claim_record,
    decode,
    encode,
    let_go,
    refused_record,
    settled_record,
    taken_back,
    with_job,
)
from pelton.queue.model.states import Attempt

OUT = (Posted("a", b"1", None), Posted("b", b"\xff", b"NATS/1.0\r\n\r\n"))
NOTE = Attempt(id="7", attempt=1, error="no")


def held() -> KeyRecord:
    return with_job(claim_record(KeyRecord(state="free", done=3), "w"), 12, 7)


def test_a_key_without_a_record_and_a_free_one_are_claimed_for_a_first_try() -> None:
    assert claim_record(None, "w") == KeyRecord(state="held", tries=1, worker="w")
    assert held() == KeyRecord(state="held", done=3, job=7, tries=1, token=12, worker="w")


def test_an_attempt_that_ends_its_job_frees_the_key_behind_it() -> None:
    over = settled_record(held(), "n", OUT, ended=True)
    assert (over.state, over.outbox, over.token) == ("settled", OUT, 12)
    assert carried_out(over) == KeyRecord(state="free", done=7)


def test_an_attempt_that_fails_leaves_job_tries_and_note_to_the_next() -> None:
    waits = carried_out(settled_record(held(), "n", OUT, ended=False, delay_ns=5, known=NOTE))
    assert waits == KeyRecord(state="waiting", done=3, job=7, tries=1, delay_ns=5, known=NOTE)
    again = with_job(claim_record(waits, "x"), 20, 7)
    assert again == KeyRecord(state="held", done=3, job=7, tries=2, token=20, worker="x", known=NOTE)


def test_a_takeover_is_another_try_of_the_same_job() -> None:
    assert claim_record(held(), "x") == KeyRecord(state="held", done=3, job=7, tries=2, worker="x")


def test_the_tries_of_a_job_that_was_removed_are_not_those_of_the_next() -> None:
    waits = KeyRecord(state="waiting", done=3, job=7, tries=4, known=NOTE)
    assert with_job(claim_record(waits, "x"), 20, 8) == KeyRecord(
        state="held", done=3, job=8, tries=1, token=20, worker="x"
    )


def test_what_was_refused_is_not_over() -> None:
    over = settled_record(held(), "n", OUT, ended=True, delay_ns=5)
    assert taken_back(over) == held()
    after = refused_record(over, "no stream")
    assert (after.state, after.ended, after.outbox) == ("settled", False, ())
    assert after.known == Attempt(id="7", attempt=1, error="no stream")
    assert carried_out(after).state == "waiting"


def test_a_claim_for_nothing_frees_the_key_as_it_was() -> None:
    assert let_go(claim_record(KeyRecord(state="free", done=3), "w")) == KeyRecord(state="free", done=3)


def test_records_are_read_as_they_were_written() -> None:
    for hold in (held(), settled_record(held(), "n", OUT, ended=True, known=NOTE), KeyRecord(state="free", done=1)):
        assert decode(encode(hold)) == hold
