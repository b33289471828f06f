"""Tests that protect promises which look redundant in the code: none of them may be deleted."""

import ast
from pathlib import Path

import pytest

HERE = Path(__file__).parent

PROMISES = {
    "a silent save needs less evidence than a notification": {
        "test_policy_danger": ["test_a_doubtful_end_within_reach_opens_the_eager_tier_alone"],
        "test_engine_scenarios": [
            "test_the_warning_comes_before_the_save_and_the_save_before_the_pause"
        ],
    },
    "a save does not lower the pace of an incident": {
        "test_incidents": ["test_the_pace_is_kept_while_a_save_holds_the_training_up"]
    },
    "saves weigh the work at stake and have a budget": {
        "test_policy_saving": [
            "test_a_save_is_due_when_the_work_at_stake_is_worth_the_time_left",
            "test_saves_cost_a_tenth_of_the_time_at_most_while_no_end_comes",
        ],
        "test_engine_scenarios": [
            "test_the_share_of_time_spent_saving_is_bounded_while_the_end_does_not_come"
        ],
    },
    "only the guiltiest is paused, and never what must not be touched": {
        "test_policy_turns": [
            "test_without_a_rule_the_guiltiest_goes_first",
            "test_nobody_who_grows_little_is_paused_in_its_stead",
        ],
        "test_engine_scenarios": ["test_what_may_not_be_paused_is_not"],
    },
    "a paused task goes on when there is room, and a person's word counts": {
        "test_engine_scenarios": [
            "test_a_little_room_is_not_enough_to_run_again",
            "test_a_task_that_a_person_resumed_is_not_paused_again",
        ]
    },
    "the machine is measured again before anything is done": {
        "test_engine_hostile": ["test_a_wild_machine_never_breaks_the_engine"],
        "test_engine_restart": ["test_a_decision_is_off_when_the_danger_is_over"],
    },
    "every limited group above a task is watched, with its swap and memory.high": {
        "test_nested_groups": [
            "test_a_leak_is_seen_though_the_tightest_group_changes_all_the_time"
        ],
        "test_ceilings": [
            "test_every_limited_group_above_a_task_is_a_ceiling_the_tightest_last",
            "test_swap_of_a_group_counts",
            "test_memory_high_below_the_limit_is_the_ceiling_where_there_is_no_swap",
        ],
    },
    "memory of copies of forks is told from memory of unwatched programs": {
        "test_culprits": [
            "test_what_workers_stop_sharing_is_growth_of_their_task",
            "test_where_nobody_looked_what_no_task_explains_is_of_other_programs",
        ]
    },
    "incidents, reports and saves outlive the daemon": {
        "test_engine_restart": [
            "test_a_pause_is_known_after_a_restart_and_ends_when_there_is_room",
            "test_a_warning_is_not_repeated_after_a_restart",
            "test_saves_of_before_are_remembered_until_the_agents_are_back",
        ]
    },
    "who was on a card is remembered for some time": {
        "test_health": [
            "test_who_died_with_its_card_is_still_named",
            "test_who_had_left_a_card_is_not_named_in_its_loss",
        ]
    },
    "evidence that could not be read is named": {
        "test_deaths_evidence": ["test_evidence_names_what_could_not_be_read"]
    },
    "a task of another daemon's runtime folder is left alone": {
        "test_policy_rules": ["test_a_task_of_another_daemon_is_left_to_it"]
    },
    "secrets leave no trace": {
        "test_secrets_hidden": ["test_a_command_line_is_shown_without_its_secrets"]
    },
    "hostile names do no harm": {
        "test_health": ["test_a_card_with_a_hostile_name_is_shown_safely"],
        "test_deaths_evidence": ["test_a_damaged_or_hostile_entry_is_told_all_the_same"],
    },
    "what can block is read beside the loop, and nobody grows unseen meanwhile": {
        "../machine/sensors/test_sensors_background": [
            "test_a_real_process_that_keeps_its_lock_holds_up_nobody",
            "test_nobody_grows_unseen_for_longer_than_two_seconds",
        ],
        "../machine/sensors/test_sensors_memberships": [
            "test_a_read_that_blocks_holds_up_no_look_and_no_other_process",
            "test_no_sample_reads_in_its_own_thread_what_can_block",
        ],
    },
    "at rest nothing that matters is seen later": {
        "test_cadence": ["test_the_interval_follows_the_room"],
        "../machine/sensors/test_sensors_at_rest": [
            "test_a_limit_set_by_hand_is_seen_within_five_seconds",
            "test_a_process_moved_to_another_group_is_seen_by_the_next_sample",
        ],
        "../machine/sensors/test_sensors_discovery": [
            "test_a_python_that_begins_is_watched_within_four_seconds",
            "test_a_pid_file_of_another_kernel_is_not_believed",
        ],
    },
    "blame is right for forked workers and unwatched members of a group": {
        "../machine/sensors/test_sensors_shared_pages": ["test_real_forks_are_counted_once"],
        "../machine/sensors/test_sensors_unwatched_members": [
            "test_who_is_not_watched_counts_also_below_the_group"
        ],
    },
    "a pause is written down before its first signal, and needs no disk": {
        "../daemon/test_crash_pauses": [
            "test_a_daemon_killed_in_a_pause_leaves_nobody_unknown",
            "test_a_slow_disk_delays_no_pause",
            "test_one_of_both_copies_is_enough",
        ],
        "../daemon/test_daemon_clients": ["test_a_pause_is_shown_written_down_and_undone"],
    },
    "exactly the processes of a task are stopped, and none escapes": {
        "../machine/process_control/test_pause_processes": [
            "test_a_pid_that_passed_to_another_process_is_left_alone",
            "test_no_child_escapes_from_a_task_that_forks_without_end",
            "test_a_shell_that_somebody_types_in_goes_on",
            "test_a_freeze_of_somebody_elses_outlasts_a_pause",
        ]
    },
    "no driver of a GPU harms the daemon, and no sleeping GPU is woken": {
        "../machine/gpu/test_gpu_failures": [
            "test_a_card_that_falls_off_the_bus_hides_no_other",
            "test_a_call_that_hangs_or_crashes_hides_no_other_card",
            "test_tries_come_later_and_later",
            "test_the_reader_goes_with_the_daemon_even_in_a_hung_call",
        ],
        "../machine/gpu/test_gpu_asleep": [
            "test_no_reader_is_started_while_every_card_sleeps",
            "test_a_sleeping_card_beside_a_working_one_is_not_touched",
        ],
    },
    "why a task ended is known from the kernel, without a wrong cause": {
        "../daemon/test_daemon_deaths": [
            "test_how_a_large_program_ended_is_known_though_its_memory_goes_first",
            "test_what_died_with_the_machine_is_told_with_the_last_readings",
        ],
        "../daemon/test_daemon_memory": ["test_a_kill_elsewhere_is_not_taken_for_the_cause"],
        "../machine/sensors/test_sensors_oom_counters": ["test_one_kill_has_one_victim"],
    },
    "a token goes only to the owner of the server": {
        "../machine/sensors/test_sensors_jupyter": [
            "test_token_is_not_sent_to_another_user_who_has_the_port_by_now"
        ]
    },
    "a journal is set aside, never lost, and read from a read-only disk": {
        "../crash/test_crash_journal_kinds": [
            "test_what_is_no_file_is_set_aside_whole",
            "test_journals_of_other_versions_are_all_kept",
        ],
        "../crash/test_crash_cuts": ["test_whatever_is_lost_with_the_power_no_promise_is_broken"],
        "../daemon/test_crash_pauses": ["test_a_damaged_journal_loses_no_pause"],
        "../daemon/test_daemon_journal": [
            "test_a_journal_that_was_not_closed_is_read_where_nothing_can_be_written"
        ],
    },
    "no client delays a sample or another client, and a status fits a message": {
        "../daemon/test_daemon_clients": ["test_one_process_cannot_keep_others_out"],
        "../daemon/test_status_limit": [
            "test_what_is_in_danger_or_paused_is_never_left_out_before_the_rest",
            "test_long_titles_leave_everybody_an_answer",
        ],
        "../security/test_security_clients": [
            "test_no_crowd_stalls_the_looks",
            "test_who_asks_without_end_is_slowed_and_nobody_else",
        ],
    },
    "quiet times end by either clock, and what they suppressed is told then": {
        "../daemon/test_loop": [
            "test_without_a_runtime_folder_the_faults_stay_and_protection_comes_on_again"
        ],
        "../daemon/test_notification_filter": [
            "test_no_clock_can_keep_it_off_for_longer",
            "test_when_quiet_hours_end_the_danger_is_to_be_told",
            "test_a_suppressed_warning_outlives_the_daemon",
        ],
    },
    "the daemon keeps its rate while memory is exhausted": {
        "../daemon/test_daemon_locking": ["test_a_low_limit_is_used_up_and_said"],
        "../e2e/test_e2e_thrash": [
            "test_in_a_group_that_thrashes_the_daemon_keeps_its_rate_and_saves"
        ],
    },
    "neither sleep nor a set clock stops a sample or raises an alarm": {
        "../daemon/test_odd_worlds_clocks": [
            "test_no_jump_of_a_clock_stops_the_looks_or_raises_an_alarm"
        ]
    },
    "the JSON Lines of replay keep their keys and options": {
        "../replay/test_replay_play": ["test_a_line_that_is_no_sample_is_answered_by_an_error"]
    },
}


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_keeps_its_tests(promise):
    for file, names in PROMISES[promise].items():
        tree = ast.parse((HERE / f"{file}.py").read_text())
        there = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert set() == set(names) - there
