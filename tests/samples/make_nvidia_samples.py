"""Write the samples of nvidia-smi that differ only by driver: the machines of nvidia_machines.py, in each of its forms.

Run it after a change, from the project's folder, and read what git shows:

    python -m tests.samples.make_nvidia_samples
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Union
from xml.sax.saxutils import escape

from tests.samples.nvidia_machines import (
    ALIASES,
    ARCHITECTURES,
    CLOCK_REASONS,
    DEPRECATED,
    FIELDS,
    MACHINES,
    NEVER,
    OTHER_FIELDS,
    Load,
    Machine,
    cells_of,
    fields_of,
)

FOLDER = Path(__file__).parent / "nvidia"
Tree = dict[str, Union[str, "Tree", "list[Tree]"]]


def write_csv(machine: Machine) -> str:
    """Return what `--query-gpu` prints."""
    fields = fields_of(machine.branch)
    lines = [", ".join(f"{name} [{unit}]" if unit else name for name, unit in fields)]
    for number in range(len(machine.loads)):
        cells = cells_of(machine, number)
        units = {
            name: f" {unit}" if machine.has_units and unit and cells[name][0] != "[" else "" for name, unit in fields
        }
        lines.append(", ".join(f"{cells[name]}{units[name]}" for name, _ in fields))
    return "".join(f"{line}{machine.line_end}" for line in lines)


def write_process_csv(machine: Machine) -> str:
    """Return what `--query-compute-apps` prints: of a GPU in MIG mode its own UUID, never that of an instance."""
    lines = ["gpu_uuid, pid, used_gpu_memory [MiB], process_name"]
    for number, load in enumerate(machine.loads):
        for process in load.processes:
            if "C" in process.kind:
                memory = process.memory if machine.has_units else process.memory.replace(" MiB", "")
                # since 590 a comma in a name is printed as a question mark
                name = process.name.replace(",", "?") if machine.branch >= 590 else process.name
                lines.append(f"{machine.uuid(number)}, {process.pid}, {memory}, {name or '[N/A]'}")
    return "".join(f"{line}{machine.line_end}" for line in lines)


def write_list(machine: Machine) -> str:
    """Return what `-L` prints."""
    lines = []
    for number, load in enumerate(machine.loads):
        lines.append(f"GPU {number}: {machine.card.name} (UUID: {machine.uuid(number)})")
        for index, instance in enumerate(load.instances):
            uuid = f"MIG-00000000-0000-0000-0000-{instance.gpu_instance:012d}"
            lines.append(f"  MIG {instance.profile:<12}Device {index:>2}: (UUID: {uuid})")
    return "".join(f"{line}{machine.line_end}" for line in lines)


def write_xml(machine: Machine) -> str:
    """Return what `-q -x` prints."""
    branch = machine.branch
    dtds = ((384, 8), (410, 9), (450, 10), (520, 11), (580, 12), (NEVER, 13))
    dtd = 6 if branch < 340 else 7 if branch < 367 else next(number for end, number in dtds if branch < end)
    head: Tree = {"timestamp": "Thu Jan  1 00:00:00 2026", "driver_version": machine.driver}
    if branch >= 610:
        note = "[Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]"
        head |= {
            "driver_version": f"{machine.driver} {note}",
            "kmd_version": machine.driver,
            "cuda_umd_version": "13.3",
        }
    elif branch >= 410:
        head["cuda_version"] = "12.0"
    head["attached_gpus"] = str(len(machine.loads))
    lines = [
        '<?xml version="1.0" ?>',
        f'<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v{dtd}.dtd">',
        "<nvidia_smi_log>",
    ]
    lines += list_xml_lines(head, 1)
    for number in range(len(machine.loads)):
        lines.append(f'\t<gpu id="{machine.bus_id(number)}">')
        lines += list_xml_lines(build_gpu_tree(machine, number), 2)
        lines += ["\t</gpu>", ""]
    lines.append("</nvidia_smi_log>")
    return "".join(f"{line}{machine.line_end}" for line in lines)


def list_xml_lines(tree: Tree, depth: int) -> Iterator[str]:
    indent = "\t" * depth
    for name, content in tree.items():
        if isinstance(content, str) and "\n" in content:
            words = [f"{indent}\t{content.strip()}"] if content.strip() else []
            yield from (f"{indent}<{name}>", *words, f"{indent}</{name}>")
        elif isinstance(content, str):
            yield f"{indent}<{name}>{escape(content)}</{name}>"
        else:
            for element in content if isinstance(content, list) else [content]:
                yield f"{indent}<{name}>"
                yield from list_xml_lines(element, depth + 1)
                yield f"{indent}</{name}>"


def build_gpu_tree(machine: Machine, number: int) -> Tree:
    """Return the elements of a GPU that gpuboard reads, and those beside them whose names occur twice."""
    branch, card, load = machine.branch, machine.card, machine.loads[number]
    cells = cells_of(machine, number)
    units = {name: unit for name, unit, *_ in FIELDS} | {"temperature.gpu": "C", "temperature.gpu.tlimit": "C"}
    units["temperature.memory"] = "C"

    def word(name: str) -> str:
        """Return a cell as XML has it: with its unit, and missing values without brackets."""
        cell, unit = cells[name], units[name]
        if cell in {"[Not Supported]", "[N/A]", "N/A"}:
            return "N/A"
        return cell.strip("[]") if cell[0] == "[" else f"{cell} {unit}".strip()

    def clocks(value: str, memory: str) -> Tree:
        return {"graphics_clock": value, "sm_clock": value, "mem_clock": memory}

    tree: Tree = {"product_name": card.name, "product_brand": "Nvidia"}
    if branch >= 510:
        tree["product_architecture"] = card.architecture
    tree |= {"display_mode": DEPRECATED if branch >= 590 else "Disabled"}
    if branch >= 575:
        tree["display_attached"] = "No"
    tree |= {"display_active": word("display_active"), "persistence_mode": word("persistence_mode")}
    if branch >= 535:
        tree["addressing_mode"] = "None"
    if branch >= 450:
        mode = word("mig.mode.current")
        tree["mig_mode"] = {"current_mig": mode, "pending_mig": mode}
    if branch >= 460:
        tree["mig_devices"] = {"mig_device": build_mig_trees(load)} if load.instances else "\nNone"
    tree |= {"serial": word("serial"), "uuid": cells["uuid"], "minor_number": str(len(machine.loads) - 1 - number)}
    tree |= {"vbios_version": word("vbios_version")}
    if branch >= 570:
        tree |= {"platformInfo": {"chassis_serial_number": "", "slot_number": "0", "module_id": "1"}}
    if 535 <= branch < 580:
        reset, drain = word("reset_status.reset_required"), word("reset_status.drain_and_reset_recommended")
        tree["gpu_reset_status"] = {"reset_required": reset, "drain_and_reset_recommended": drain}
    if branch >= 570:
        tree["gpu_recovery_action"] = word("gpu_recovery_action")
    generation: Tree = {"max_link_gen": "4", "current_link_gen": word("pcie.link.gen.current")}
    if branch >= 535:
        of_device = word("pcie.link.gen.gpucurrent")
        generation = dict.fromkeys(("max_link_gen", "current_link_gen"), "N/A" if of_device == "N/A" else "1")
        generation["device_current_link_gen"] = of_device
    widths: Tree = {
        name: "N/A" if cells[cell][0] == "[" else f"{cells[cell]}x"
        for name, cell in (
            ("max_link_width", "pcie.link.width.max"),
            ("current_link_width", "pcie.link.width.current"),
        )
    }
    link: Tree = {"pcie_gen": generation, "link_widths": widths}
    tree["pci"] = {"pci_bus": "00", "pci_bus_id": word("pci.bus_id"), "pci_gpu_link_info": link}
    tree |= {"fan_speed": word("fan.speed"), "performance_state": word("pstate")}
    event = "event" if branch >= 535 else "throttle"
    mask = cells[f"clocks_{event}_reasons.active"]
    prefix = f"clocks_{event}_reason"
    active = 0 if mask[0] == "[" else int(mask, 16)
    reasons: Tree = {
        f"{prefix}_{reason}": "Active" if active & bit else "Not Active"
        for reason, bit, first in CLOCK_REASONS
        if branch >= first
    }
    if branch < 384:
        reasons[f"{prefix}_unknown"] = "Not Active"
    tree[f"{prefix}s"] = "N/A" if mask[0] == "[" else reasons
    if branch >= 575:
        tree["clocks_event_reasons_counters"] = {"clocks_event_reasons_counters_sw_power_cap": "0 us"}
    names = ("total", "reserved", "used", "free") if branch >= 510 else ("total", "used", "free")
    tree["fb_memory_usage"] = {name: word(f"memory.{name}") for name in names}
    tree["bar1_memory_usage"] = {"total": "256 MiB", "used": "7 MiB", "free": "249 MiB"}
    if branch >= 535:
        tree["cc_protected_memory_usage"] = {"total": "0 MiB", "used": "0 MiB", "free": "0 MiB"}
    tree["compute_mode"] = word("compute_mode")
    use: Tree = {"gpu_util": word("utilization.gpu"), "memory_util": word("utilization.memory")}
    use |= {"encoder_util": word("utilization.encoder"), "decoder_util": word("utilization.decoder")}
    tree["utilization"] = {**use, "jpeg_util": "0 %", "ofa_util": "0 %"} if branch >= 535 else use
    ecc_mode = word("ecc.mode.current")
    tree["ecc_mode"] = {"current_ecc": ecc_mode, "pending_ecc": ecc_mode}
    tree["ecc_errors"] = {
        period: build_ecc_tree(
            machine, word(f"ecc.errors.corrected.{period}.total"), word(f"ecc.errors.uncorrected.{period}.total")
        )
        for period in ("volatile", "aggregate")
    }
    pages = {"multiple_single_bit_retirement": "single_bit_ecc", "double_bit_retirement": "double_bit"}
    retired: Tree = {
        name: {"retired_count": word(f"retired_pages.{count}.count"), "retired_pagelist": "\n"}
        for name, count in pages.items()
    }
    tree["retired_pages"] = {**retired, "pending_retirement": word("retired_pages.pending")}
    if branch >= 450:
        rows = {"corr": "correctable", "unc": "uncorrectable", "pending": "pending", "failure": "failure"}
        remapped: Tree = {f"remapped_row_{end}": word(f"remapped_rows.{name}") for end, name in rows.items()}
        tree["remapped_rows"] = "N/A" if cells["remapped_rows.pending"][0] == "[" else remapped
    temperature: Tree = {"gpu_temp": word("temperature.gpu")}
    if branch >= 525:
        temperature["gpu_temp_tlimit"] = word("temperature.gpu.tlimit")
    if branch >= 535 and card.age >= ARCHITECTURES.index("Ada"):
        temperature["gpu_temp_max_tlimit_threshold"] = "-5 C"
    else:
        temperature["gpu_temp_max_threshold"] = "96 C"
    tree["temperature"] = {**temperature, "memory_temp": word("temperature.memory")}
    power = build_power_trees(machine, word("power.draw"), word("power.limit"), word("enforced.power.limit"))
    state = DEPRECATED if branch >= 590 else word("pstate")
    tree |= {name: {"power_state": state, **readings} for name, readings in power.items()}
    tree["clocks"] = clocks(word("clocks.current.sm"), word("clocks.current.memory"))
    application_clock = DEPRECATED if branch >= 590 else "1000 MHz"
    tree["applications_clocks"] = {"graphics_clock": application_clock, "mem_clock": application_clock}
    tree["max_clocks"] = clocks(word("clocks.max.sm"), "9001 MHz")
    if branch >= 525:
        tree["fabric"] = build_fabric_tree(branch, cells)
    tree["supported_clocks"] = {"supported_mem_clock": {"value": "9001 MHz", "supported_graphics_clock": "210 MHz"}}
    if branch < 340:
        infos: list[Tree] = [
            {"pid": str(process.pid), "process_name": process.name, "used_memory": process.memory}
            for process in load.processes
        ]
        tree["compute_processes"] = {"process_info": infos} if infos else "\n"
    else:
        tree["processes"] = {"process_info": build_process_trees(machine, load)} if load.processes else "\n"
    tree["accounted_processes"] = "\n"
    return tree


def build_fabric_tree(branch: int, cells: Mapping[str, str]) -> Tree:
    tree: Tree = {"state": cells["fabric.state"], "status": cells["fabric.status"]}
    if branch < 570:
        return tree
    names = ["bandwidth", "route_recovery_in_progress", "route_unhealthy", "access_timeout_recovery"]
    names = ["summary", *names, "incorrect_configuration"] if branch >= 580 else names
    health: Tree = {name: cells[f"fabric.health.{name}"] for name in names}
    return {**tree, "cliqueId": "N/A", "clusterUuid": "N/A", "health": health}


def build_mig_trees(load: Load) -> list[Tree]:
    return [
        {
            "index": str(index),
            "gpu_instance_id": str(instance.gpu_instance),
            "compute_instance_id": "0",
            "device_attributes": {"shared": {"multiprocessor_count": "10"}},
            "ecc_error_count": {"volatile_count": {"sram_uncorrectable": "0"}},
            "fb_memory_usage": {
                "total": f"{instance.memory} MiB",
                "reserved": "0 MiB",
                "used": f"{instance.used} MiB",
                "free": f"{instance.memory - instance.used} MiB",
            },
            "bar1_memory_usage": {"total": "1000 MiB", "used": "1 MiB", "free": "999 MiB"},
        }
        for index, instance in enumerate(load.instances)
    ]


def build_process_trees(machine: Machine, load: Load) -> list[Tree]:
    trees: list[Tree] = []
    for process in load.processes:
        tree: Tree = {}
        if machine.branch >= 450:
            has_instance = process.instance != "N/A"
            tree = {"gpu_instance_id": process.instance, "compute_instance_id": "0" if has_instance else "N/A"}
        tree |= {"pid": str(process.pid), "type": process.kind, "process_name": process.name.strip("[]")}
        trees.append({**tree, "used_memory": process.memory.strip("[]")})
    return trees


def build_ecc_tree(machine: Machine, corrected: str, uncorrected: str) -> Tree:
    """Return the counts as this driver has them of this generation of cards; their sum is that of the CSV."""
    zero = "N/A" if corrected == "N/A" else "0"
    if machine.card.age < ARCHITECTURES.index("Turing") or machine.branch < 418:
        return {
            "single_bit": {"device_memory": corrected, "register_file": zero, "total": corrected},
            "double_bit": {"device_memory": uncorrected, "register_file": zero, "total": uncorrected},
        }
    if machine.card.age < ARCHITECTURES.index("Ampere") or machine.branch < 550:
        sram: Tree = {"sram_correctable": zero, "sram_uncorrectable": zero}
    else:
        sram = {"sram_correctable": zero, "sram_uncorrectable_parity": zero, "sram_uncorrectable_secded": zero}
    return {**sram, "dram_correctable": corrected, "dram_uncorrectable": uncorrected}


def build_power_trees(machine: Machine, draw: str, limit: str, enforced: str) -> dict[str, Tree]:
    """Return the elements that hold the power, the names of which changed twice."""
    if machine.branch < 535:
        limits: Tree = {"power_limit": limit, "default_power_limit": limit, "enforced_power_limit": enforced}
        return {"power_readings": {"power_management": "Supported", "power_draw": draw, **limits}}
    draws: Tree = {"power_draw": draw}
    if machine.branch >= 570:
        draws = {"average_power_draw": draw, "instant_power_draw": draw}
    limits = {"current_power_limit": enforced, "requested_power_limit": limit, "default_power_limit": limit}
    none: Tree = dict.fromkeys([*draws, *limits], "N/A")
    trees: dict[str, Tree] = {"gpu_power_readings": {**draws, **limits}}
    if machine.branch >= 570:
        trees["gpu_memory_power_readings"] = {"average_power_draw": "11.00 W", "instant_power_draw": "11.00 W"}
    return {**trees, "module_power_readings": none}


def write_help(branch: int) -> str:
    """Return what `--help-query-gpu` prints: fields, their aliases, and sentences in which a field may be quoted."""
    names = [name for name, _ in fields_of(branch)]
    names += [name for name, first, end in OTHER_FIELDS if first <= branch < end]
    lines = ['List of valid properties to query for the switch "--query-gpu=":', ""]
    for name in names:
        if name == "memory.total":
            lines += ["Section about memory properties", "On-board memory information.", ""]
        alias = f' or "{ALIASES[name]}"' if name in ALIASES else ""
        sentence = f'What it says of {name.replace("_", " ")}. See also "not.a.field".'
        lines += [f'"{name}"{alias}', sentence, ""]
    return "\n".join(lines) + "\n"


def build_samples() -> dict[str, str]:
    """Return the text of each file by its place below tests/samples/nvidia."""
    samples = {}
    for machine in MACHINES:
        if "csv" in machine.forms:
            samples[f"gpus/{machine.name}.csv"] = write_csv(machine)
            samples[f"processes/{machine.name}.csv"] = write_process_csv(machine)
        if "xml" in machine.forms:
            samples[f"xml/{machine.name}.xml"] = write_xml(machine)
            samples[f"list/{machine.name}.txt"] = write_list(machine)
    for machine in MACHINES:
        if machine.name in {"465-rtx-6000", "535-l40s", "595-rtx-pro-6000"}:
            samples[f"help/{machine.name}.txt"] = write_help(machine.branch)
    return samples


def main() -> None:
    for place, text in build_samples().items():
        path = FOLDER / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())


if __name__ == "__main__":
    main()
