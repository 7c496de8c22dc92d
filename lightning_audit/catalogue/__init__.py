"""Every check by its name: share, rule, group, the faults it tells; loads no numpy."""
