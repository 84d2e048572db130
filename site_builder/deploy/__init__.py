"""`gpuboard deploy`: install gpuboard on many hosts."""
