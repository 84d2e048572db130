"""A fleet for people and programs: from a URL, a data folder or this machine."""
