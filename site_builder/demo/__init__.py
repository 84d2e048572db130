"""The simulated lab of `gpuboard demo`, and `gpuboard here`."""
