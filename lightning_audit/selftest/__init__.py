"""`lightning-audit selftest`: train every known fault, and test that the audit names it."""
