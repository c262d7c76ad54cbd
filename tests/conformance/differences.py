"""Where three replicas answer differently from one, in nats-server 2.15.1: cases that are skipped there, and why.

Each was also sent to the servers without Pelton, as raw requests, with the same result.
"""

from typing import Final

_BROKEN: Final = (
    "a last message id that is not the expected one is a 'critical write error' on every replica: the stream "
    "no longer answers publishes"
)
_NO_ROOM: Final = "the leader checks for room before it proposes, when it is not known yet what makes room"
_ONE: Final = "it is for streams with one replica"
_PREPARED: Final = "a cluster prepares every message as if it were one of a batch"

NOT_REPLICATED: Final = {
    "streams.one_replica_is_enough": "here all streams have three",
    "settings.replicas_need_a_cluster": "here is a cluster",
    "settings.a_persist_mode_is_kept_and_cannot_be_changed": f"'async persist mode is not supported': {_ONE}",
    "settings.everything_can_be_captured_without_acks": f"'capturing all subjects requires replicas of 1': {_ONE}",
    "expectations.the_last_message_id": _BROKEN,
    "expectations.of_several_that_do_not_hold_the_first_is_told": _BROKEN,
    "expectations.the_last_id_is_that_of_the_last_message": _BROKEN,
    "expectations.conditions_are_looked_at_before_there_is_room": "an expected last id is checked after the room",
    "expectations.a_duplicate_is_told_before_the_last_id_it_expects": "a duplicate comes before a missing sequence",
    "faults.of_a_message_alone": _PREPARED,
    "faults.an_increment_is_missed_in_a_batch_before_sequences_are_compared": _PREPARED,
    "consumer_limits.a_direct_consumer_is_not_counted": "a direct consumer is created, and not found by its name",
    "consumers.create_only_takes_an_ephemeral_one_without_a_threshold_for_another": (
        "a cluster compares with the threshold that it sets itself"
    ),
    "interest.a_full_stream_takes_what_it_does_not_keep": _NO_ROOM,
    "limits.a_subject_replaces_its_own_in_a_full_stream": _NO_ROOM,
    "delivery.the_floor_begins_below_the_last_of_each_subject": "a floor is 0 until something is acknowledged",
    "delivery.a_reset_keeps_to_the_deliver_policy": "a refused reset is sometimes not answered",
    "sourcing.what_no_source_can_be": "the leader of the cluster answers 10049 to an invalid filter",
    "groups.whose_pin_is_taken_is_asked_before_there_is_a_consumer": "the cluster looks for the consumer first",
    "ttl.only_where_the_stream_allows_it": "whether a TTL is allowed is checked before its value",
    "counters.a_counter_ends_with_its_last_message": (
        "in flight, increments continue from a total that a limit is about to remove"
    ),
    "reading.streams_come_in_pages": "a page past the end counts no streams at all",
    "accounts.use_is_told_by_storage": "the use of an account counts every replica",
    "accounts.requests_and_errors_are_counted": "each server counts those it answers, and informs the others later",
    "events.requests_are_audited": "an audit does not contain its request",
    "events.consumers_are_deleted_with_their_stream": (
        "the leader of a consumer that learns of the stream's end before its own sends no advisory"
    ),
    # Seen only through Pelton so far.
    "mirrors.a_mirror_has_limits_of_its_own": "a mirror with replicas still has what its limits should remove",
    "mirrors.a_mirror_of_nothing_says_so": "a mirror with replicas reports no error for a missing origin",
}

# Where a served store answers differently from nats-server: cases that are skipped there, and why.
_STRICT: Final = "an ack of a delivery that was replaced is confirmed, as on NATS, and has no effect"
_ADDED: Final = "the store refuses what would break it later"
SERVED_OTHERWISE: Final[dict[str, str]] = {
    "acks.the_ack_of_a_replaced_delivery_settles_the_message": _STRICT,
    "interest.a_late_ack_removes_an_exhausted_message": _STRICT,
    "counters.sources_that_cannot_be_read_break_a_counter": _ADDED,
    "interest.limits_become_interest_and_what_no_filter_matches_is_left": "nothing is left that nobody wants",
    "settings.replicas_need_a_cluster": "10052, and the text says what to do",
}
