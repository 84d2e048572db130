"""`gpuboard deploy`: gpuboard on many hosts at once, from the web host."""
