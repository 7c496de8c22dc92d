"""The command `lightning-audit`: a command a module, without torch."""
