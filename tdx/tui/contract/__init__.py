"""The Contract view: the chain side by side with a contract or another target."""
