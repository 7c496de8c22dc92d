"""Black-box audits of any function that claims to be private, from its outputs."""
