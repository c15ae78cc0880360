"""One agent per node: it starts workers, sees their deaths at once, and keeps its node's place in the job.

`core/supervision` decides; `agent` carries it out, `processes` starts and ends workers, `worker_environment` is what
they find in their environment.
"""
