"""Unequal ranks on one machine: runs a job with every rank throttled to its relative speed.

Reading order: `planning` (pure: who gets how much of which core), `request` (the command line),
`processes` (which processes are which rank), `throttle` and its two mechanisms `cgroup_quota` (in
one of `cgroup_hierarchies`) and `signal_duty`, `supervision` (the running job and its end, also
by its `guard`).
"""
