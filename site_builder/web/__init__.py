"""`gpuboard serve`: the built-in web server."""
