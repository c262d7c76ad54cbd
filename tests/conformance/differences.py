"""What three replicas answer differently from one, in nats-server 2.15: cases that are not asked there, and why."""

from typing import Final

_REPLICAS: Final = "it says what one replica allows, or counts replicas"
_SILENT: Final = "nats-server 2.15 gives no answer where a replicated stream refuses this"
_LEADER: Final = "the leader of a replicated stream looks at limits before it proposes, in another order"
_LATER: Final = "the replicas remember ids and positions after the publish is proposed"
_SAID: Final = "the servers of a cluster say it in parts: an audit without its request, a change once more"

NOT_REPLICATED: Final = {
    "changes.what_may_change": _REPLICAS,
    "settings.a_number_of_replicas_is_checked": _REPLICAS,
    "settings.replicas_need_a_cluster": _REPLICAS,
    "settings.a_placement_is_kept": _REPLICAS,
    "settings.a_persist_mode_is_kept_and_cannot_be_changed": _REPLICAS,
    "settings.everything_can_be_captured_without_acks": _REPLICAS,
    "streams.the_configuration_is_reported_resolved": _REPLICAS,
    "delivery.a_reset_keeps_to_the_deliver_policy": _SILENT,
    "expectations.the_last_message_id": _SILENT,
    "expectations.of_several_that_do_not_hold_the_first_is_told": _SILENT,
    "expectations.the_last_id_is_that_of_the_last_message": _SILENT,
    "expectations.conditions_are_looked_at_before_there_is_room": _LEADER,
    "interest.a_full_stream_takes_what_it_does_not_keep": _LEADER,
    "limits.a_subject_replaces_its_own_in_a_full_stream": _LEADER,
    "expectations.a_duplicate_is_told_before_the_last_id_it_expects": _LATER,
    "delivery.the_last_of_each_subject_and_then_all": _LATER,
    "reading.streams_come_in_pages": _LATER,
    "events.what_changes_nothing_is_not_said": _SAID,
    "events.requests_are_audited": _SAID,
    "counters.a_counter_ends_with_its_last_message": _LATER,
}
