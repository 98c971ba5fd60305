"""The tab that measures what each part of a rollout costs, and what an edit saved."""
