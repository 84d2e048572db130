#!/usr/bin/env bats
# nvidia-smi's XML: when it is asked for, and what of it leaves the host.
load helper
# shellcheck disable=SC2034 # for bats: some tests take a snapshot of many machines
BATS_TEST_TIMEOUT=300

# mig_gpu PROCESSES: the XML of a GPU that is cut in two, and its list.
mig_gpu() {
    cat >"$SMI/list" <<'END'
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-1111-2222-3333-444444444444)
  MIG 3g.40gb     Device  0: (UUID: MIG-a)
  MIG 1g.10gb     Device  1: (UUID: MIG-b)
END
    cat >"$SMI/xml" <<END
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">
<nvidia_smi_log>
	<driver_version>590.48.01</driver_version>
	<attached_gpus>1</attached_gpus>
	<gpu id="00000000:01:00.0">
		<product_name>NVIDIA H100 80GB HBM3</product_name>
		<mig_mode>
			<current_mig>${mode:-Enabled}</current_mig>
		</mig_mode>
		<mig_devices>
			${devices-<mig_device>
				<index>0</index>
				<gpu_instance_id>2</gpu_instance_id>
				<compute_instance_id>0</compute_instance_id>
				<device_attributes>
					<shared>
						<multiprocessor_count>60</multiprocessor_count>
					</shared>
				</device_attributes>
				<fb_memory_usage>
					<total>40448 MiB</total>
					<used>26 MiB</used>
				</fb_memory_usage>
			</mig_device>}
		</mig_devices>
		<uuid>GPU-00000000-1111-2222-3333-444444444444</uuid>
		<fan_speed>N/A</fan_speed>
		<supported_clocks>
			<supported_mem_clock>
				<value>7001 MHz</value>
				<supported_graphics_clock>3105 MHz</supported_graphics_clock>
			</supported_mem_clock>
		</supported_clocks>
		<processes>
			$1
		</processes>
		<accounted_processes>
			<accounted_process_info>
				<pid>77</pid>
			</accounted_process_info>
		</accounted_processes>
	</gpu>
</nvidia_smi_log>
END
}

# process PID TYPE NAME
process() {
    printf '<process_info>\n\t<gpu_instance_id>2</gpu_instance_id>\n\t<compute_instance_id>0</compute_instance_id>\n\t<pid>%s</pid>\n\t<type>%s</type>\n\t<process_name>%s</process_name>\n\t<used_memory>512 MiB</used_memory>\n</process_info>\n' "$@"
}

# mode_is WORD: what CSV says of the mode of the GPU; other cells say Enabled too.
mode_is() { printf 'index, uuid, name, memory.used, persistence_mode, mig.mode.current, ecc.mode.current\n0, GPU-00000000-1111-2222-3333-444444444444, NVIDIA H100, 12, Enabled, %s, Enabled\n' "$1" >"$SMI/table"; }

asked() { grep -c -- "$1" "$SMI/calls" || true; }

@test "a host without MIG is asked for CSV alone, and writes the file that it always wrote" {
    mode_is Disabled
    for _ in 1 2; do "$RUN_SH" tick 1 && "$RUN_SH" tick 2; done
    [ "$(asked '-q -x')" = 0 ]
    [ "$(asked -L)" = 0 ]
    has_not "$SPOOL/gpus.csv" '# part'
    [ ! -e "$SPOOL/mig" ]
}

# bats test_tags=quick,shell
@test "where a GPU is in MIG mode, XML and list are told in the same tick, and later asked for at once" {
    mode_is Enabled
    mig_gpu "$(process 42 C python)"
    "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 0
    [ "$(sed -n 2p "$SPOOL/gpus.csv")" = '# part nvidia-xml rc=0' ]
    has "$SPOOL/gpus.csv" '# part nvidia-xml/list rc=0'
    has "$SPOOL/gpus.csv" 'MIG 1g.10gb     Device  1: (UUID: MIG-b)'
    has_not "$SPOOL/gpus.csv" 'persistence_mode,'
    : >"$SMI/calls"
    "$RUN_SH" tick 1
    "$RUN_SH" tick 2
    [ "$(asked --query)" = 0 ]
    whole "$SPOOL/processes.csv" processes 0
    has "$SPOOL/processes.csv" '<pid>42</pid>'
    has "$SPOOL/processes.csv" 'Device  0: (UUID: MIG-a)'
}

@test "MIG that is switched off is noticed" {
    mode_is Enabled
    mig_gpu
    "$RUN_SH" tick 1
    mode_is Disabled
    mode=Disabled devices=None mig_gpu
    "$RUN_SH" tick 1
    : >"$SMI/calls"
    "$RUN_SH" tick 1
    "$RUN_SH" tick 2
    [ "$(asked '-q -x')" = 0 ]
    has "$SPOOL/gpus.csv" 'GPU-00000000-1111-2222-3333-444444444444, NVIDIA H100'
}

# bats test_tags=shell
@test "XML that fails costs nothing that CSV tells" {
    mode_is Enabled
    for _ in 1 2; do
        "$RUN_SH" tick 1
        whole "$SPOOL/gpus.csv" gpus 0
        has "$SPOOL/gpus.csv" 'GPU-00000000-1111-2222-3333-444444444444, NVIDIA H100'
        has "$SPOOL/gpus.csv" '# err nvidia-smi -q -x told no GPU (exit code 255)'
    done
    mig_gpu
    "$RUN_SH" tick 1
    has "$SPOOL/gpus.csv" '# part nvidia-xml rc=0'
    rm "$SMI/xml"
    "$RUN_SH" tick 1
    "$RUN_SH" tick 2
    has "$SPOOL/gpus.csv" 'GPU-00000000-1111-2222-3333-444444444444, NVIDIA H100'
    has "$SPOOL/processes.csv" 'gpu_uuid, pid, used_gpu_memory [MiB], process_name'
}

# bats test_tags=shell
@test "GPUBOARD_NVIDIA says in which form it is asked" {
    mode_is Enabled
    mig_gpu
    GPUBOARD_NVIDIA=csv "$RUN_SH" tick 1
    [ "$(asked '-q -x')" = 0 ]
    mode_is Disabled
    mode=Disabled devices=None mig_gpu
    : >"$SMI/calls"
    GPUBOARD_NVIDIA=xml "$RUN_SH" tick 1
    [ "$(asked --query)" = 0 ]
    [ "$(asked -L)" = 0 ] # without instances the list tells nothing new
    has "$SPOOL/gpus.csv" '# part nvidia-xml rc=0'
    echo GPUBOARD_NVIDIA=csv >gpuboard.conf
    run_whole "$RUN_SH" tick 1 # with the question for the topology in the background
    has_not "$SPOOL/gpus.csv" '# part'
    : >"$SMI/calls"
    GPUBOARD_NVIDIA=no "$RUN_SH" tick 1
    GPUBOARD_NVIDIA=no "$RUN_SH" tick 2
    [ ! -s "$SMI/calls" ]
    has "$SPOOL/gpus.csv" '# err it is not asked, since GPUBOARD_NVIDIA is no'
    run env GPUBOARD_NVIDIA=rust "$RUN_SH" tick 1
    [ "$status" = 2 ]
    [[ $output == *"GPUBOARD_NVIDIA is 'rust', but must be auto, csv, xml or no"* ]]
}

@test "XML is asked under the time limit, and what is missing is told" {
    export GPUBOARD_NVIDIA=xml
    rm "$TMP/bin/nvidia-smi"
    PATH=$TMP/bin:/usr/bin:/bin "$RUN_SH" tick 1
    whole "$SPOOL/gpus.csv" gpus 127
    has "$SPOOL/gpus.csv" '# part nvidia-xml rc=127'
}

@test "what is reported of the NVLink fabric leaves the host" {
    machine 580-gb300-fabric
    GPUBOARD_NVIDIA=xml "$RUN_SH" tick 1
    GPUBOARD_NVIDIA=xml "$RUN_SH" tick 2
    has "$SPOOL/gpus.csv" '<state>In Progress</state>'
    has "$SPOOL/gpus.csv" '<bandwidth>Degraded</bandwidth>'
    has "$SPOOL/gpus.csv" '<incorrect_configuration>Insufficient Nvlinks</incorrect_configuration>'
    has_not "$SPOOL/processes.csv" '<bandwidth>'
}

awks() {
    local one
    for one in mawk gawk 'busybox awk' original-awk; do
        command -v "${one%% *}" >/dev/null || missing "there is no $one here"
        printf '#!/bin/sh\nexec %s "$@"\n' "$(command -v "${one%% *}")${one#"${one%% *}"}" >"$TMP/bin/awk"
        chmod +x "$TMP/bin/awk"
        "$@"
    done
}

looked_at_processes() {
    "$RUN_SH" tick 1
    "$RUN_SH" tick 2
    "$RUN_SH" tick 3
    local word
    for word in '<pid>' '<process_name>' Xorg supported_graphics_clock multiprocessor_count '<pid>77'; do has_not "$SPOOL/gpus.csv" "$word"; done
    has "$SPOOL/gpus.csv" '<total>40448 MiB</total>'
    for word in Xorg s3cret hunter2 '<pid>77' product_name; do has_not "$SPOOL/processes.csv" "$word"; done
    has "$SPOOL/processes.csv" "<process_name>python •••</process_name>"
    has "$SPOOL/processes.csv" "<process_name>tool•••</process_name>"
    has "$SPOOL/processes.csv" '<gpu_instance_id>2</gpu_instance_id>'
    has "$SPOOL/ps.txt" "sleep 98"
    [ "$(awk -F '\t' -v pid="$$" '$1 == pid && $3 == pid' "$SPOOL/ps.txt")" = '' ] # a number in a name is no pid
}

@test "no secret leaves the host, nor what is huge; whose a process is, is known" {
    sleep 98 &
    mode_is Enabled
    mig_gpu "$(process $! C 'python --password=s3cret x' && process 9 G /usr/lib/xorg/Xorg && process 10 C "tool
--key hunter2" && process 11 C "tool, $$, 2, 3")"
    awks looked_at_processes
}

# hidden_or_named: neither the name of a process nor a word in the place of them makes one vanish; nor does a line of a name pass for one of ours.
hidden_or_named() {
    mig_gpu "$(process 12 C "x
<type>G</type>
<pid>99</pid>
</process_name>" && process 13 C "$(printf 'a\r# part zzz rc=0\rb')")"
    "$RUN_SH" tick 1
    "$RUN_SH" tick 2
    has "$SPOOL/processes.csv" '<pid>12</pid>'
    has "$SPOOL/processes.csv" '<pid>13</pid>'
    has_not "$SPOOL/processes.csv" '<pid>99'
    [ "$(tr '\r' '\n' <"$SPOOL/processes.csv" | grep -c '^# part zzz')" = 0 ]
    local word
    for word in N/A 'Unknown Error' 'GPU is lost'; do
        mig_gpu "$word"
        "$RUN_SH" tick 2
        grep -qx "$word" "$SPOOL/processes.csv"
    done
    sed -i "/<processes>/,/<\/processes>/c <processes />" "$SMI/xml"
    "$RUN_SH" tick 2
    grep -qx '<processes />' "$SPOOL/processes.csv"
}

@test "no name of a process and no word in its place makes one vanish" {
    mode_is Enabled
    awks hidden_or_named
}

@test "the XML of all drivers is understood from what the host keeps of it" {
    local file kept
    export GPUBOARD_NVIDIA=xml
    for file in "$SAMPLES"/nvidia/xml/*.xml $(captures 'xml/*gb200*' && captures 'xml/*dual_a5000*' && captures 'xml/*a100*' &&
        captures 'xml/*missing-tags*' && captures 'xml/*tesla_p4*' && captures 'xml/*example2*' && captures 'xml/*smi-3*'); do
        case ${file##*/} in no-gpu-attached.xml | hostile-* | names-odd.xml) continue ;; esac # arguments are cut
        cp "$file" "$SMI/xml"
        printf 'GPU 0: A (UUID: GPU-1)\n' >"$SMI/list"
        "$RUN_SH" tick 1
        "$RUN_SH" tick 2
        whole "$SPOOL/gpus.csv" gpus 0
        kept=$TMP/kept/$(basename "$file")
        mkdir -p "$kept"
        cp "$file" "$kept/printed.xml"
        cp "$SPOOL/gpus.csv" "$SPOOL/processes.csv" "$kept"
    done
    PYTHONPATH="$BATS_TEST_DIRNAME/../.." "$BATS_TEST_DIRNAME/../../.venv/bin/python" - "$TMP/kept" <<'END'
import sys
from pathlib import Path
from site_builder.snapshots.gpu_tools import parse_gpus_of_tools
from site_builder.snapshots.gpu_tools import parse_processes_of_tools
for kept in Path(sys.argv[1]).iterdir():
    printed = (kept / "printed.xml").read_bytes()
    for task, parse in ("gpus", parse_gpus_of_tools), ("processes", parse_processes_of_tools):
        head = f"# gpuboard 1 task={task} host=gpu1 time=1 every=1 took_ms=1 rc=0\n# part nvidia-xml rc=0\n".encode()
        whole, left = parse(head + printed + b"\n# end\n"), parse((kept / f"{task}.csv").read_bytes())
        assert whole.rows == left.rows, (kept.name, whole.rows, left.rows)
        assert whole.problems == left.problems, (kept.name, whole.problems, left.problems)
        assert whole.messages == left.messages, (kept.name, whole.messages, left.messages)
END
}

# host_of_eight FILE LINES: eight times its first GPU, with so many more lines of clocks that it supports.
host_of_eight() {
    sed -n '1,/<attached_gpus>/p' "$1"
    for n in 1 2 3 4 5 6 7 8; do sed -n '/<gpu id/,/<\/gpu>/{p; /<\/gpu>/q}' "$1" | sed -E "s/:(06|11):/:0$n:/"; done |
        awk -v lines="$2" '{ print } /<supported_graphics_clock>/ { for (i = 0; i < lines; i++) print }'
    echo '</nvidia_smi_log>'
}

# is_small: what the host keeps of the XML.
is_small() {
    GPUBOARD_NVIDIA=xml "$RUN_SH" tick 1
    [ "$(grep -c '<gpu id' "$SPOOL/gpus.csv")" = 8 ]
    [ "$(wc -c <"$SPOOL/gpus.csv")" -lt 70000 ]
    [ "$(wc -c <"$SMI/xml")" -gt 500000 ]
}

@test "what a host of eight tells as XML is small" {
    host_of_eight "$SAMPLES/nvidia/xml/610-rtx-4000.xml" 1500 >"$SMI/xml"
    is_small
    for file in $(captures 'xml/*rtx-4000-sff*'); do
        host_of_eight "$file" 0 >"$SMI/xml"
        is_small
    done
}
