"""The pytest plugin: a test fails if the training in it is less private than it claims."""
