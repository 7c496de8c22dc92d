"""What an audit found: plain, frozen and JSON-able."""
