"""The words that drivers and their tools print in the place of a value, each with where it comes from.

Sources: NVML is `nvmlErrorString`, which nvidia-smi prints with brackets in CSV, and without in XML and tables; `table`
is what only nvidia-smi's table prints; amd-smi and rocm-smi are names and sentences of their libraries' status codes.
"""

from __future__ import annotations

# The GPU cannot be used until it is reset or its host is rebooted, whatever cell this stands in.
LOST_WORDS = {
    "GPU is lost": "NVML",
    "[GPU is lost]": "NVML, in CSV",
    "[GPU Lost]": "older spelling",
    "gpu IS LOST": "any case",
    "GPU requires reset": "NVML",
    "[GPU requires reset]": "NVML, in CSV",
    "[GPU Requires Reset]": "older spelling",
    "GPU is lost.  Reboot the system to recover this GPU": "nvidia-smi, beside the rows",
    "Reset required": "nvidia-smi -q, as the name of a state",
}
# Something is wrong, whatever cell this stands in; NVML's words stand in CSV with brackets.
NVIDIA_ERRORS = {
    "Unknown Error": "NVML",
    "Unknown error": "older spelling",
    "ERR!": "table",
    "No data": "NVML",
    "No Data": "older spelling",
    "Timeout": "NVML",
    "Failed": "table",
    "Uninitialized": "NVML",
    "Already Initialized": "NVML",
    "Invalid Argument": "NVML",
    "Invalid State": "NVML",
    "Insufficient Size": "NVML",
    "Insufficient External Power": "NVML",
    "Insufficient Memory": "NVML",
    "Insufficient Resources": "NVML",
    "Driver Not Loaded": "NVML",
    "Interrupt Request Issue": "NVML",
    "Corrupted infoROM": "NVML",
    "GPU access blocked by the operating system": "NVML",
    "Driver/library version mismatch": "NVML",
    "Argument version mismatch": "NVML",
    "In use by another client": "NVML",
    "Not Ready": "NVML",
}
AMD_ERRORS = {
    "Unknown error": "rocm-smi",
    "ERROR": "rocm-smi",
    "Error": "amd-smi",
    "Failed": "amd-smi",
    "No data": "amd-smi",
    "Unable to read": "rocm-smi",
    "Unable to get power cap": "rocm-smi",
    "AMDSMI_STATUS_INTERNAL_EXCEPTION": "amd-smi",
    "AMDSMI_STATUS_TIMEOUT - Timeout in API call": "amd-smi",
    "AMDSMI_STATUS_NO_DATA - No data was found for given input": "amd-smi",
    "AMDSMI_STATUS_DRM_ERROR": "amd-smi",
    "AmdSmiLibraryException: Error code: 34": "amd-smi, as Python prints its exception",
    "RSMI_STATUS_UNKNOWN_ERROR": "rocm-smi",
    "RSMI_STATUS_UNEXPECTED_DATA: The data read or provided to function is not what was expected": "rocm-smi",
}
# An error in memory, use and temperature alone: elsewhere healthy machines print it to who is not root.
NVIDIA_REFUSALS = {"Insufficient Permissions": "NVML; power_smoothing of healthy B200, in XML"}
AMD_REFUSALS = {
    "AMDSMI_STATUS_NO_PERM": "amd-smi",
    "Permission denied": "amd-smi",
    "RSMI_STATUS_PERMISSION: Permission denied": "rocm-smi",
}
# There is no such value, which is no error.
NO_READING = {
    "[N/A]": "nvidia-smi since 450",
    "N/A": "nvidia-smi, also in CSV; amd-smi and rocm-smi",
    "[Not Supported]": "nvidia-smi before 450",
    "Not Supported": "NVML; rocm-smi",
    "[Not Found]": "NVML, as cuda_version of healthy machines",
}
# What healthy drivers print in cells that gpuboard does not need, besides.
HARMLESS = {
    "[Function Not Found]": "NVML, as bbx.time_run of 610",
    "[Requested functionality has been deprecated]": "NVML, as display_mode since 590",
    "[Not Supported]": "nvidia-smi before 450",
    "None": "nvidia-smi, as the value of gpu_recovery_action",
    "": "nvidia-smi, as platform.chassis_serial_number",
}


def add_brackets(words: dict[str, str]) -> tuple[str, ...]:
    """Return each word as XML has it, and as CSV has it."""
    return tuple(form for word in words for form in (word, f"[{word}]"))
