"""One page about a sweep, its schedule and the verification: HTML for people, Markdown for repositories."""
