"""The command `lightning-audit`; a command loads torch only if it trains."""
