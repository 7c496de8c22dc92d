"""Trade-off functions and the divergences behind them."""
