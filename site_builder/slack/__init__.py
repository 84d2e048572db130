"""The bot in Slack: what it understands, what it answers, and how that is written there."""
