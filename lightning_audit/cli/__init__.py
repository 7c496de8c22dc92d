"""The command `lightning-audit`: one module per subcommand, loaded without torch."""
