"""The verdict PASS, VIOLATION or INCONCLUSIVE from the checks, with the likely fault."""
