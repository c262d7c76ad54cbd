"""Every error: its place in the tree, its message, its fields, and that it survives pickling."""

import pickle
import re
from string import Formatter

import pytest

from pelton import api
from pelton.api import errors
from pelton.api.error_table import ERRORS

EXAMPLES: list[tuple[api.PeltonError, str]] = [
    (api.ConfigError("max_msgs: expected int"), "max_msgs: expected int"),
    (api.NoStreamForSubjectError("a.b"), "no stream takes the subject 'a.b' [503, 0]: create a stream"),
    (
        api.AckRejectedError("S", "c", 7, "its ack wait passed"),
        "ack of message 7 (stream 'S', consumer 'c') rejected: its ack wait passed",
    ),
    (api.StoreError("x.pelton"), "store 'x.pelton' failed: check the file and its disk, then reopen it"),
    (api.StoreBusyError("x"), "store 'x' is busy: retry"),
    (
        api.StoreFullError("x", "SQLITE_FULL"),
        "no space left on its disk (SQLITE_FULL): nothing was stored; free",
    ),
    (api.StoreDescriptorsError("x"), "store 'x' could not open a file: raise the limit (ulimit -n"),
    (
        api.StoreFailedError("x", "fsync"),
        "stopped after a failed write (fsync): check the disk, then close and",
    ),
    (api.StoreGoneError("x", "removed"), "'x' is not at its path any more (removed): nothing more is stored; reopen"),
    (api.StoreClosedError("x"), "store 'x' is closed: open it again"),
    (api.StoreForkedError("x"), "opened before this process forked: open it again in the child"),
    (
        api.WrongLoopError("x", "that one has ended"),
        "uses it now (that one has ended): call jet.clone() or pelton.open",
    ),
    (api.StoreVersionError("x", 3, 2), "newer Pelton (its schema is 3, this release knows up to 2): upgrade"),
    (api.NotAStoreError("x", "no header"), "'x' is no Pelton store (no header): check the path;"),
    (api.StoreReadOnlyError("x"), "store 'x' is read-only: open it writable"),
    (api.StoreSettingsError("x", "network file system"), "with these settings (network file system): change"),
    (
        api.CorruptMessageError("S", 7, "x"),
        "store 'x' holds a damaged message (stream 'S', sequence 7, checksum mismatch): it is never",
    ),
    (api.TransactionError("its block is over"), "transaction: its block is over"),
    (api.TransactionTimeoutError(1.5), "open for longer than 1.5 s and was rolled back"),
    (api.SqlError("no such table: t", "SELECT *\n FROM t"), "SQL 'SELECT * FROM t': no such table: t; the statement"),
    (api.SqlConstraintError("UNIQUE", "INSERT"), "SQL 'INSERT': UNIQUE; the statement changed nothing"),
    (api.SqlForbiddenError("COMMIT is not", "COMMIT"), "SQL 'COMMIT': COMMIT is not; the statement changed nothing"),
    (api.LockTimeoutError("lock 'a'", 2.5), "lock 'a' could not be acquired within 2.5 s: others hold it"),
    (api.LockLostError("lock 'a'", 7, "late"), "lock 'a' was lost while held with token 7 (late): others may hold it"),
    (api.LockNotHeldError("lock 'a'"), "lock 'a' is not held here: it was already released"),
    (api.LockReentryError("lock 'a'", 7), "already held by this caller (token 7)"),
    (api.PermanentJobError("no such address"), "no such address"),
    (api.RetryJob(), "the job asks to run again after the queue's backoff"),
    (api.RetryJob(1.5, "busy"), "the job asks to run again in 1.5 s: busy"),
    (api.JobCrashedError("7", "paint", -11), "was killed by signal 11"),
    (api.JobCrashedError("7", "paint", 3), "exited (3)"),
    (api.Continue(1, to=2), "the job asks to begin anew: only one that takes a JobContext can"),
    (api.Snooze(60, "closed"), "the job asks to be started again in 60 s: closed"),
    (api.Cancel("sold"), "sold"),
    (api.Discard(), "the job has discarded itself"),
    (api.LeaseLostError("j1", "car1", "expired"), "job 'j1' (key 'car1') lost its lease (expired): stop now"),
    (api.JobCancelledError("j1"), "job 'j1' was cancelled: enqueue it again"),
    (api.UnknownJobError("paint", ["wash"]), "no job is named 'paint' (known: wash): import the module"),
    (api.UnknownJobError("paint"), "(known: none)"),
    (
        api.JobFailedError("7", "paint", "failed", "ValueError: no", "Traceback"),
        "job '7' ('paint') failed and has no result: ValueError: no; its dead letter can be redriven",
    ),
    (
        api.JobFailedError("7", "paint", "cancelled"),
        "ended as cancelled and has no result: no error",
    ),
    (api.JobNotFoundError("mail", "7", "gone"), "queue 'mail' has no job '7': gone; see jobs()"),
    (api.FlowNotFoundError("mail", "f1"), "queue 'mail' has no flow 'f1': it was never enqueued here"),
    (api.JobNotMovedError("mail", "7", "running"), "job '7' of queue 'mail' was not moved, because it is running"),
    (api.JobEndedError("mail", "7", "failed"), "job '7' of queue 'mail' has ended (failed) and receives no signals"),
    (
        api.SignalTimeoutError("7", "paint", "paid", 60.0),
        "job '7' ('paint') has received no signal 'paid' within 60 s: give wait_for() a default",
    ),
    (
        api.StepTimeoutError("7", "paint", "step 'dry'", 60.0),
        "job '7' ('paint'): step 'dry' took longer than its timeout of 60 s and was stopped: raise timeout",
    ),
    (api.QueueNotFoundError("mail"), "there is no queue 'mail': check its name, see jet.queue_names()"),
    (api.QueueInUseError("mail", 3), "queue 'mail' was not deleted, because workers hold 3 of its jobs: stop them"),
    (api.JobTimeoutError("7", "paint", 60.0), "job '7' ('paint') took longer than its timeout of 60 s and was stopped"),
    (api.JobResultError("paint", "no"), "job 'paint': its result can't be stored as JSON: no; return what"),
    (
        api.JobArgumentsError("paint", "missing 'car'"),
        "job 'paint' cannot take these arguments: missing 'car'",
    ),
]
ROWS = sorted(ERRORS)


def test_what_a_cancelled_job_says_is_not_said_twice() -> None:
    error = api.JobFailedError("7", "paint", "cancelled", f"JobCancelledError: {api.JobCancelledError('7')}")
    assert str(error).count("enqueue it again if still wanted") == 1


def from_table(constant: str) -> api.ApiError:
    holes = {name: "x" for _, name, _, _ in Formatter().parse(ERRORS[constant][2]) if name}
    return api.api_error(constant, stream="S", consumer="c", **holes)


@pytest.mark.parametrize(("error", "sentence"), EXAMPLES, ids=[type(row[0]).__name__ for row in EXAMPLES])
def test_messages(error: api.PeltonError, sentence: str) -> None:
    assert sentence in str(error)
    assert "{" not in str(error)


@pytest.mark.parametrize("error", [row[0] for row in EXAMPLES] + [from_table(row) for row in ROWS], ids=repr)
def test_pickling_keeps_everything(error: api.PeltonError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), copy.args, vars(copy)) == (str(error), error.args, vars(error))


@pytest.mark.parametrize("constant", ROWS)
def test_every_row_becomes_an_error(constant: str) -> None:
    error = from_table(constant)
    assert (error.code, error.err_code, error.constant) == (*ERRORS[constant][:2], constant)
    assert "stream 'S', consumer 'c'" in str(error)
    assert str(error).startswith(error.description)


@pytest.mark.parametrize(
    ("constant", "kind"),
    [
        ("JSStreamNotFoundErr", api.StreamNotFoundError),
        ("JSConsumerNotFoundErr", api.ConsumerNotFoundError),
        ("JSNoMessageFoundErr", api.MessageNotFoundError),
        ("JSStreamTemplateNotFoundErr", api.NotFoundError),
        ("JSStreamNameExistErr", api.BadRequestError),
        ("JSStreamWrongLastMsgIDErrF", api.ExpectationError),
        ("JSStreamMessageExceedsMaximumErr", api.MessageTooLargeError),
        ("JSMaximumStreamsLimitErr", api.LimitError),
        ("JSStreamGeneralErrorF", api.ApiError),
    ],
)
def test_rows_find_their_class(constant: str, kind: type[api.ApiError]) -> None:
    assert type(from_table(constant)) is kind


def test_wrong_last_sequence_tells_the_real_one() -> None:
    ours = api.api_error("JSStreamWrongLastSequenceErrF", stream="S", seq=12)
    theirs = errors.from_reply(400, 10071, "wrong last sequence: 12", stream="S")
    for error in (ours, theirs):
        assert isinstance(error, api.WrongLastSequenceError)
        assert (error.seq, error.description) == (12, "wrong last sequence: 12")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (errors.MAXIMUM_MESSAGES, api.MaxMessagesError),
        (errors.MAXIMUM_BYTES, api.MaxBytesError),
        (errors.MAXIMUM_MESSAGES_PER_SUBJECT, api.MaxMessagesPerSubjectError),
        ("disk on fire", api.ApiError),
    ],
)
def test_full_streams_are_told_apart(text: str, kind: type[api.ApiError]) -> None:
    assert type(api.api_error("JSStreamStoreFailedF", err=text)) is kind


def test_unknown_codes_of_newer_servers() -> None:
    assert type(errors.from_reply(404, 19999, "no such thing")) is api.NotFoundError
    assert errors.from_reply(500, 19999, "odd").constant == ""


def test_mistakes_in_the_calling_code_are_not_hidden() -> None:
    with pytest.raises(KeyError):
        api.api_error("JSShineErr")
    with pytest.raises(KeyError):
        api.api_error("JSStreamGeneralErrorF")


def test_a_bad_argument_is_a_value_error() -> None:
    assert issubclass(api.ConfigError, ValueError)


def test_the_drawn_tree_names_every_class_and_no_other() -> None:
    names = r"\b[A-Z]\w*Error\b|\b(?:RetryJob|Snooze|Continue|Cancel|Discard)\b"
    drawn = set(re.findall(names, (errors.__doc__ or "").split("::")[1]))
    classes = {
        name for name, value in vars(api).items() if isinstance(value, type) and issubclass(value, api.PeltonError)
    }
    assert drawn - {"ValueError", "KeyError", "TimeoutError"} == classes
    assert classes <= set(api.__all__)
