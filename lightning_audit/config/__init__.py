"""Configuration of an audit: the claim, the arguments, and their changes at a resume."""
