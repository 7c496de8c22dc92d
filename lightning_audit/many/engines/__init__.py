"""Where blocks of trainings run: local processes, executors, this process."""
