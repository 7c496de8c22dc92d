"""Lower bounds on epsilon from the errors of attacks, and the intervals on which they rest."""
