"""Crashes a log at every operation of a simulated disk.

    python -m tests.sweep.crash_sweep --workloads 50 --seed 1

`workload` generates and runs histories of one log, `log_model` says what may survive a crash, and `log_judge` checks
what did.
"""
