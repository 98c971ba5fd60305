"""The tab in which an env is stepped while one looks."""
