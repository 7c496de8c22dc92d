"""`lightning-audit selftest`: every known fault is trained, and the audit must name it."""
