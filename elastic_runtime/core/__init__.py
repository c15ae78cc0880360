"""The decisions, as pure functions and state machines. Nothing here reads a clock, the environment or a file.

A reading order: `world` (who trains, with which rank), `view` (what the coordinator knows), `membership` (when a world
is replaced by the next, and why), `coordinator` (keeps the view, has the outcome written), `supervision` (what an agent
does about its workers), `recovery` (whose state is the newest, who pulls it), `batch` (who computes which micro-batch),
`samples` (which samples they hold), `learning_rate`.
"""
