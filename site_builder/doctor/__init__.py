"""`gpuboard doctor`: checks of the web host."""
