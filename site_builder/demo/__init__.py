"""A simulated lab: its hosts are files that stand in for nvidia-smi and /proc, and the real scripts read them."""
