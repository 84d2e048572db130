"""Settings: gpuboard.conf, the environment, and the value in force."""
