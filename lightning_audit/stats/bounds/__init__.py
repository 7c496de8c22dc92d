"""Lower bounds on epsilon from the errors of attacks, and the intervals that they rest on."""
