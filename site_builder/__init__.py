"""gpuboard: from a folder of snapshots to a static GPU board."""

__version__ = "0.1.0"
