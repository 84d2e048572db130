"""What a host sent: the files in data/HOST and their parsers."""
