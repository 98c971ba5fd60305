"""What each part of a rollout costs."""
