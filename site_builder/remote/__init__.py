"""ssh connections, and `gpuboard pull`."""
