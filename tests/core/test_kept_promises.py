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
