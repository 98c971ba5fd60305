"""Step an env interactively; ``views`` holds the results as plain data, without torch."""
