"""From checks to PASS, VIOLATION or INCONCLUSIVE, with the likely fault."""
