"""One parser for each tool and file format: bytes in, rows and problems out."""
