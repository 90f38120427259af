"""What `make test` runs: each feature once, under one mpirun. `make test-rest` runs what is not listed here.

No test of this list needs Horovod, a scheduler or another MPI than the environment's: CI runs them before those are installed.
All of it takes at most 900 processor seconds, so that it is over in some ten minutes on two cores: whoever adds a test
here looks at the time of ``time make test`` (user and sys).
"""

from __future__ import annotations

# Folders, files and functions of tests/. A function stands for all of its parameters.
FIRST = (
    "unit",
    # launch, scripts, refusals
    "launched/test_help.py",
    "launched/test_explain.py",
    "launched/test_extensions.py",
    "launched/test_optimizer_steps.py",
    "launched/test_shared_import.py",
    "launched/test_binding.py::test_ranks_on_the_same_cores_get_their_own",
    "launched/test_stage.py::test_ranks_find_the_copies_at_the_same_path",
    "launched/test_start.py",
    "launched/test_refusals.py::test_before_torch",
    "launched/test_refusals.py::test_ranks_with_other_arguments",
    "launched/test_scripts.py::test_a_script_finds_what_torchrun_gives",
    "launched/test_scripts.py::test_ddp_with_a_distributed_sampler",
    "launched/test_scripts.py::test_exit_codes_pass_through",
    "launched/test_programs.py::test_a_program_is_run_as_python_does",
    "launched/test_console_script.py::test_a_workload_is_the_users_where_both_have_it",
    # workloads, metrics, loops of one's own
    "launched/test_examples.py::test_a_gan_on_two_ranks",
    "launched/test_workloads.py::test_linear_saves_and_resumes",
    "launched/test_workloads.py::test_mnist_on_digits_reaches_97_percent",
    "launched/test_loggers.py::test_loggers_get_the_same_numbers_and_one_that_fails_ends_nothing",
    "launched/test_workloads.py::test_chosen_steps_are_profiled",
    # strategies: ddp, fsdp, zero1 and local-sgd, tensor and pipeline parallelism
    "launched/layouts/test_alike.py",
    "launched/layouts/test_llama.py::test_weights_go_out_and_come_in",
    "launched/layouts/test_recipes.py::test_mnist_sharded_has_the_losses_of_data_parallelism",
    # a loop of one's own
    "launched/test_own_loop.py::test_it_trains_alike_however_it_is_started",
    # data of the user's own
    "launched/test_data.py::test_an_epoch_ends_on_all_ranks_with_the_shortest_stream",
    "launched/test_data.py::test_what_cannot_be_shared_is_refused",
    "launched/test_data.py::test_a_loader_of_another_kind_is_used_as_it_is",
    "launched/test_data.py::test_places_of_other_ranks_are_refused",
    "launched/test_tree_batches.py::test_the_example_is_a_script",
    "launched/test_task_fields.py::test_the_largest_of_a_metric_may_be_the_best",
    # checkpoints
    "launched/test_resume.py::test_a_damaged_checkpoint_is_refused_and_kept",
    "launched/test_resume.py::test_local_sgd_goes_on_from_the_average_of_all_ranks",
    "launched/test_resume.py::test_what_is_not_complete_is_passed_over",
    "launched/test_shards.py::test_every_layout_reads_what_every_other_has_written",
    "launched/test_checkpoint_tool.py::test_what_is_listed_verified_and_removed",
    # preemption, failures, hangs
    "launched/test_preemption.py::test_a_signal_saves_and_asks_for_another_run",
    "launched/test_preemption.py::test_a_script_is_told_at_a_signal",
    "launched/test_failures.py::test_an_exception_on_one_rank_ends_the_job",
    "launched/test_failures.py::test_a_script_that_hangs_in_a_collective_shows_it_too",
    "launched/guard/test_agent.py",
    "launched/guard/test_guard.py",
    "launched/test_log_dir.py::test_what_a_rank_prints_is_kept_and_shown",
    "launched/test_restart_in_place.py::test_a_script_goes_on_from_its_checkpoint",
    "launched/test_supervise.py::test_a_killed_job_goes_on_and_the_same_failure_twice_ends_it",
    # MPI collectives
    "launched/test_mpi_backend.py::test_every_operation",
    # tools: doctor is in smoke
    "launched/test_bench.py::test_a_narrow_terminal_gets_fewer_columns",
    "launched/test_compare.py::test_engines_train_the_same_model",
    "launched/test_documented_modules.py::test_strategies_config_resume_export_and_report",
    "launched/test_scale.py::test_known_costs_are_found_again",
    "launched/layouts/test_plan.py::test_a_terminal_gets_a_table_and_files_the_rest",
    "launched/test_report.py::test_a_training_that_started_again_in_place",
    "launched/test_smoke.py::test_on_this_machine",
    "launched/test_top.py::test_it_is_printed_once",
)


def is_first(file: str, function: str) -> bool:
    """Whether `make test` runs a test. ``file`` is its path within tests/, with slashes."""
    return any(covers(entry, f"{file}::{function}") for entry in FIRST)


def covers(entry: str, test: str) -> bool:
    """Whether a folder, file or function has the test ``FILE::FUNCTION`` in it, or is it."""
    return test == entry or test.startswith((f"{entry}/", f"{entry}::"))
