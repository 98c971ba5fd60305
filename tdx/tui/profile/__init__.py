"""The Profile tab: measure what each part of a rollout costs, and compare edits."""
