"""Print what amd-smi and rocm-smi would print on a simulated host."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence

from site_builder.core.html import load_html_template
from site_builder.demo.nvidia_tools import NvidiaToolProcess
from site_builder.demo.scenario import ScenarioMachine, build_scenario_gpu_uuid, simulate_readings

DRIVER_VERSION = "6.10.5"
BYTES_PER_MIB = 1024 * 1024
# The driver counts the processors of the machine too, and them first.
FIRST_NODE_ID = 2
# What is on the board: device, part number of the firmware, what it is sold as, and its architecture.
BOARD_IDS = {
    "AMD Instinct MI210": ("0x740f", "113-D67301V-073", "D67301V", "gfx90a"),
    "Radeon RX 7900 XTX": ("0x744c", "113-D7020100-102", "D70201", "gfx1100"),
}


def render_amd_output(
    machine: ScenarioMachine, seen: Sequence[tuple[int, int]], gpu_processes: Sequence[NvidiaToolProcess], now: float
) -> dict[str, str]:
    """Render the answer to each question to the tool of this machine."""
    is_rocm = machine.amd_tool == "rocm-smi"
    template = load_html_template("rocm_smi.json" if is_rocm else "amd_smi.json")
    answers = {}
    for gpu, unit in enumerate(machine.units):
        if unit.vendor == "amd":
            uuid = build_scenario_gpu_uuid(machine, gpu)
            readings = simulate_readings(unit.model, uuid, *seen[gpu], now)
            device, firmware, sold_as, architecture = BOARD_IDS[unit.model.name]
            text = template.render(
                unit=unit,
                own_id=uuid[4:],
                bus_id=f"0000:{0x83 + 3 * unit.index:02x}:00.0",
                node_id=FIRST_NODE_ID + unit.index,
                device=device,
                firmware=firmware,
                sold_as=sold_as,
                architecture=architecture,
                driver_version=DRIVER_VERSION,
                readings=readings,
                watts=round(readings.watts),
                processes=[process for process in gpu_processes if process.gpu == gpu],
                bytes_per_mib=BYTES_PER_MIB,
            )
            answers[f"card{unit.index}"] = json.loads(text)
    if is_rocm:
        processes_by_pid: dict[int, list[NvidiaToolProcess]] = defaultdict(list)
        for process in gpu_processes:
            if machine.units[process.gpu].vendor == "amd":
                processes_by_pid[process.pid].append(process)
        processes_text = load_html_template("rocm_processes.txt").render(
            processes_by_pid=processes_by_pid, units=machine.units, bytes_per_mib=BYTES_PER_MIB
        )
        names = {card: answer["names"] for card, answer in answers.items()}
        return {
            "rocm-names": json.dumps({**names, "system": {"Driver version": DRIVER_VERSION}}),
            "rocm-metric": json.dumps({card: answer["metric"] for card, answer in answers.items()}),
            "rocm-processes": processes_text,
        }
    output = {}
    for question in ("list", "static", "metric", "process"):
        entries = [answer[question] for answer in answers.values()]
        answer = {"gpu_data": entries} if question in ("static", "metric") else entries
        output[question] = json.dumps(answer, indent=4) + "\n"
    return output
