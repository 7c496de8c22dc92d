"""What is raised where a training cannot be audited; a front end translates it into its own."""

from __future__ import annotations


class UnauditableTraining(Exception):
    """This training cannot be audited as it is; the message says what to change."""
