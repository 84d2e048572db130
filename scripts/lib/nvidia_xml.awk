# Shorten the output of `nvidia-smi -q -x`. Task 1 omits processes: their names are whole commands, with secrets. Task 2 keeps processes
# and where they run, with their names masked by mask_process_names.awk, and without those that only draw.
# Variables: task, out_file. Prints `gpus` if there are any, `mig` if one is in MIG mode, `instances` if one has MIG instances.

# print_kept_line: write this line to out_file.
function print_kept_line() { print > out_file }

# is_start_of: return whether this line begins that element, and does not end it.
function is_start_of(tag) { return index($0, "<" tag ">") == 1 && !index($0, "</" tag ">") }

BEGIN {
    # the first line has most of the bytes; the others are shown nowhere
    omitted = "supported_clocks processes compute_processes accounted_processes"
    omitted = omitted " platformInfo inforom_version inforom_bbx_flush gpu_operation_mode driver_model ibmnpu encoder_stats fbc_stats"
    omitted = omitted " bar1_memory_usage cc_protected_memory_usage device_attributes aggregate_uncorrectable_sram_sources row_remapper_histogram"
    omitted = omitted " applications_clocks default_applications_clocks deferred_clocks max_customer_boost_clocks clock_policy clocks_event_reasons_counters"
    omitted = omitted " power_profiles gpu_memory_power_readings module_power_readings supported_gpu_target_temp capabilities"
    for (i = split(omitted, tags, " "); i > 0; i--) is_omitted[tags[i]] = 1 # `name` is a string in mask_process_names.awk
    printf "" > out_file
}

{
    sub(/\r$/, "")
    sub(/^[ \t]+/, "")
    if ($0 == "" || index($0, "<process_name") > 1) next # a name that is not on its own line may end anywhere
}

skipped_tag != "" {
    if (index($0, "</" skipped_tag ">") == 1) skipped_tag = ""
    next
}

in_name { if (index($0, "</process_name>") || /^<\/gpu>/) in_name = 0; if (!/^<\/gpu>/) next }
/^<gpu[ >]/ { in_gpu = gpus = 1 }
/^<current_mig>Enabled/ { mig = 1 }
/^<mig_device>/ { has_instances = 1 }
/^<\/gpu>/ { in_gpu = 0; print_kept_line(); next }

task == "gpus" || !in_gpu {
    if (match($0, /^<[A-Za-z0-9_]+/) && (substr($0, 2, RLENGTH - 1) in is_omitted)) {
        tag = substr($0, 2, RLENGTH - 1)
        if (is_start_of(tag)) skipped_tag = tag
    } else if (!index($0, "<process_name")) print_kept_line()
    next
}

# Task 2, within a GPU.
/^<gpu[ >]/ || /^<uuid>/ || /^Unable to determine/ { print_kept_line(); next }
/^<\/?mig_device(s)?>/ { print_kept_line(); in_instances = !/<\/mig_devices>/; next }
in_instances { if (/^<(index|gpu_instance_id|compute_instance_id)>/) print_kept_line(); next }
/^<(compute_)?processes ?\/?>/ || /^<\/(compute_)?processes>/ { print_kept_line(); in_processes = !index($0, "/"); next }
/^<accounted_processes>/ { if (is_start_of("accounted_processes")) skipped_tag = "accounted_processes"; next }
!in_processes { next }
/^<process_info>/ { info = ""; is_graphics = 0 }
/^<process_name>/ {
    process_name = substr($0, 15)
    in_name = !sub(/<\/process_name>.*/, "", process_name) # its other lines are dropped
    suffix = in_name ? "•••" : ""
    $0 = "<process_name>" mask_process_name(process_name) suffix "</process_name>"
}
/^<type>G</ { is_graphics = 1 }
/^<\/process_info>/ { if (!is_graphics) { $0 = info $0; print_kept_line() }; next }
/^<(process_info|gpu_instance_id|compute_instance_id|pid|type|process_name|used_memory)>/ { info = info $0 "\n"; next }
/^[A-Z][A-Za-z\/ !]*$/ { print_kept_line() } # N/A, Insufficient Permissions, Unknown Error: processes cannot be listed

END { print (gpus ? "gpus " : "") (mig ? "mig " : "") (has_instances ? "instances" : "") }
