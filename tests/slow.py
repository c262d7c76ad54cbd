"""What `make test` leaves to `make test-slow`: long Spark tests, three servers, kills.

Enough of each part stays in `make test`; a new test is part of it unless it is listed here, or is the
"long" one of its parameters.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import pytest

# The prefixes of test ids, and why they are slow.
_SLOW: Final = {
    "tests/queue/run/test_durable_kills.py::test_workers_are_killed[True-": "kills, as without keys",
    "tests/queue/run/test_durable_kills.py::test_workers_that_undo_are_killed[True-": "kills, as without keys",
    "tests/queue/enqueue/test_schedules.py::test_many_processes_define_it_and_it_fires_once[True-file": "processes",
    "tests/queue/enqueue/test_schedules.py::test_many_processes_define_it_and_it_fires_once[False-nats": "processes",
    "tests/queue/enqueue/test_schedules.py::test_runs_of_a_schedule_do_not_overlap[tenant-": "as without tenants",
    "tests/queue/enqueue/test_instructions.py::test_claims_give_back_what_they_do_not_know[nats": "as on a file",
    "tests/queue/flow/test_kills.py::test_workers_are_killed[nats": "kills",
    "tests/server/test_leaf_troubles.py::test_a_hub_that_does_not_read_is_cut": "waits of servers",
    "tests/cli/test_dashboard.py::test_a_dead_cluster_is_said_at_once[cluster]": "as on a file",
    "tests/arguments/test_wrong_types.py::test_nothing_but_our_errors_comes_out[file": "as in memory, with less",
    "tests/examples/flights/test_lake.py": "Spark, over all flights of a month",
    "tests/cli/test_dashboard.py::test_a_token_is_asked_for[cluster]": "as on a file",
    "tests/cli/test_dashboard.py::test_actions_are_there_if_allowed[cluster]": "as on a file",
    "tests/cli/test_dashboard.py::test_it_is_read_only_and_answers_to_its_own_names[cluster]": "as on a file",
    "tests/cli/test_pipeline.py": "Spark sessions of its own",
    "tests/cli/work": "supervisors and their children",
    "tests/cluster/test_bad_input.py": "every mistake on two backends",
    "tests/cluster/test_replicas.py": "three servers",
    "tests/cluster/test_losses.py": "kills of three servers",
    "tests/cluster/test_outage.py": "kills of three servers",
    "tests/contrib/test_celery.py::test_a_chord_whose": "kills",
    "tests/contrib/test_celery.py::test_a_server_that_is_lost": "kills of three servers",
    "tests/contrib/test_celery.py::test_an_application_runs": "processes, and three servers",
    "tests/contrib/test_celery.py::test_beat": "processes",
    "tests/contrib/test_celery.py::test_events": "processes",
    "tests/contrib/test_celery.py::test_results": "processes",
    "tests/contrib/test_celery.py::test_tasks_of_killed": "kills",
    "tests/contrib/test_django.py::test_tasks_are_enqueued_run_and_looked_up[arguments1]": "processes",
    "tests/contrib/test_kombu.py::test_messages_of_a_process_that_is_killed": "kills",
    "tests/conformance/test_conformance.py::test_conformance[sourcing.an_origin_that_is_made_again": "waits of servers",
    "tests/crash/queue/test_crash.py::test_paused": "pauses",
    "tests/crash/queue/test_crash_cluster.py": "kills",
    "tests/crash/queue/test_stopped.py": "pauses",
    "tests/crash/queue/test_faketime.py": "a machine of its own",
    "tests/crash/served": "kills",
    "tests/crash/test_failed_syncs.py": "kills",
    "tests/queue/run/test_processes.py::test_what_a_job_has_started_ends_with_its_worker": "kills",
    "tests/crash/test_feeding.py": "kills",
    "tests/crash/test_sourcing.py": "kills",
    "tests/dashboard/test_browser.py": "a browser",
    "tests/dashboard/test_pages.py::test_every_page_is_shown_and_escapes_what_it_shows[cluster]": "as on a file",
    "tests/differential/test_differential.py": "programs on the engine and on nats-server",
    "tests/differential/test_served.py": "programs on a served store and on nats-server",
    "tests/docs/test_pages.py::test_examples_of_a_page_run_and_print_what_it_says[copy.md]": "three servers",
    "tests/docs/test_pages.py::test_examples_of_a_page_run_and_print_what_it_says[pipelines.md]": "Spark",
    "tests/docs/test_pages.py::test_examples_of_a_page_run_and_print_what_it_says[spark": "Spark",
    "tests/docs/test_site.py::test_the_site_builds_strictly": "a build of all pages",
    "tests/engine/test_endings.py::test_a_candidate_that_gives": "terms that end",
    "tests/engine/test_endings.py::test_a_leader_that_gives": "terms that end",
    "tests/engine/test_processes.py::test_many_processes_make": "many processes",
    "tests/engine/test_forgetting.py::test_what_is_gone_is_not_kept_in_memory[one_": "many objects",
    "tests/engine/test_turns.py::test_leases_are_kept": "seconds of writing without a pause",
    "tests/examples/test_examples.py::test_example_prints_what_it_promises[celery_shop]": "a worker that is killed",
    "tests/examples/test_web_shop.py": "processes that serve and work",
    "tests/fuzz/test_many.py": "very many inputs",
    "tests/locks/test_dead_waiters.py::test_ctrl_c": "processes that wait for terms",
    "tests/model/test_processes.py": "programs over four processes",
    "tests/packaging/test_wheel.py": "environments of their own",
    "tests/proof/test_proof.py::test_a_proof_goes_on": "rounds of a proof",
    "tests/queue/programs/test_processes.py": "workers that are killed, on a file and on servers",
    "tests/queue/limits/test_limits.py::test_a_long_line": "how long it takes is measured",
    "tests/queue/run/test_keys.py::test_the_next_of_a_key_is_deliverable": "how long it takes is measured",
    "tests/queue/run/test_leases.py::test_a_paused": "pauses",
    "tests/queue/run/test_leases.py::test_order_of_a_key": "kills",
    "tests/queue/test_schedules.py::test_many_processes": "processes",
    "tests/moving/test_backups.py::test_a_hundred_points": "a store under load for long",
    "tests/moving/test_backups.py::test_each_point_is_the_store_of_its_moment[fsspec": "as in a folder",
    "tests/moving/test_backups.py::test_each_point_is_the_store_of_its_moment[memory": "as in a folder",
    "tests/moving/test_backups.py::test_killed_at_each_change": "kills",
    "tests/moving/test_backups.py::test_old_points_go_and_all_others_can_be_restored[f": "as in memory",
    "tests/moving/test_copy.py::test_killed": "kills",
    "tests/moving/test_cluster_standby.py::test_killed": "kills, on one server and on three",
    "tests/moving/test_standby.py::test_a_full_disk": "a process that waits",
    "tests/moving/test_standby.py::test_a_follower_tells": "a change of the key, which waits for its follower",
    "tests/moving/test_standby.py::test_killed": "kills",
    "tests/moving/test_served_standby.py::test_it_goes_on": "servers that are killed",
    "tests/moving/test_to_three_servers.py::test_everything": "kills of three servers",
    "tests/queue/test_kills.py": "kills",
    "tests/server/clients": "clients for Node and others",
    "tests/server/test_process.py": "processes that serve",
    "tests/server/test_processes.py": "processes beside a server",
    "tests/server/test_reload.py": "processes that serve",
    "tests/server/test_slow.py": "clients that do not read",
    "tests/soak": "a soak",
    "tests/sourcing/test_network.py": "kills",
    "tests/spark/hosts": "hosts of their own",
    "tests/spark/pipelines": "Spark at length",
    "tests/spark/read/test_batch_reader.py::test_columns_that": "Spark at length",
    "tests/spark/read/test_batch_reader.py::test_options_that_cannot": "Spark at length",
    "tests/spark/read/test_batch_reader.py::test_predicates": "Spark at length",
    "tests/spark/read/test_data_loss.py": "kills",
    "tests/spark/read/test_expiry.py": "Spark at length",
    "tests/spark/read/test_stream_reader.py": "Spark at length",
    "tests/spark/test_cluster.py": "Spark on three servers",
    "tests/spark/test_connect.py": "a Spark server of its own",
    "tests/spark/test_finding.py": "Spark at length",
    "tests/spark/test_login.py": "servers with logins",
    "tests/spark/test_outrun.py": "Spark at length",
    "tests/spark/test_three_servers.py": "Spark on three servers",
    "tests/spark/work/test_executors.py::test_jobs_of_a_killed": "kills",
    "tests/spark/work/test_executors.py::test_arguments": "Spark at length",
    "tests/spark/work/test_executors.py::test_tasks_end": "Spark at length",
    "tests/spark/write/test_cluster_writer.py": "Spark on three servers",
    "tests/spark/write/test_stream_writer.py": "Spark at length",
    "tests/spark/write/test_task_attempt.py": "Spark at length",
    "tests/spark/write/test_write_crash.py": "kills",
    "tests/spark/write/test_writer.py::test_a_limit_that": "Spark at length",
    "tests/spark/write/test_writer.py::test_a_row_that_cannot": "Spark at length",
    "tests/spark/write/test_writer.py::test_what_does_not_fit": "Spark at length",
    "tests/storm": "kills, cancellations and full disks",
}
_BEGINNINGS: Final = tuple(_SLOW)
_ENDINGS: Final = ("-nats-cluster]", "[long]", "-long]")
# Of so many cases on what is the engine on a file as well, one is in `make test`, the same in every run.
_ONE_OF: Final = {"-served]": 12, "-engine-memory]": 4}


def mark_what_is_slow(items: list[pytest.Item]) -> None:
    """Mark tests: `slow` for one of the two targets; `at_length` for those of Hypothesis, which are in both."""
    for item in items:
        is_left = any(item.nodeid.endswith(on) and crc32(item.nodeid.encode()) % of for on, of in _ONE_OF.items())
        if is_left or item.nodeid.startswith(_BEGINNINGS) or item.nodeid.endswith(_ENDINGS):
            item.add_marker(pytest.mark.slow)
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.at_length)
