"""What is measured beside time: each a meter of its own, in rollouts of its own."""
