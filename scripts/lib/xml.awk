# What `nvidia-smi -q -x` told, without what is huge, and for task 1 without its processes: their names are whole commands, with secrets. Task 2
# gets these and what tells where each is; of their names what names.awk lets pass, and none that only draws.
# Variables: task, to (the file that is written). On stdout, in words: `gpus` if there is any, `mig` if one is in that mode, `parts` if one is cut.
function tell() { print > to }

# begins TAG: whether this line begins that element, and does not end it.
function begins(tag) { return index($0, "<" tag ">") == 1 && !index($0, "</" tag ">") }

BEGIN {
    # the first line is most of the whole; the others are what no page shows
    several = "supported_clocks processes compute_processes accounted_processes"
    several = several " platformInfo inforom_version inforom_bbx_flush gpu_operation_mode driver_model ibmnpu encoder_stats fbc_stats fabric"
    several = several " bar1_memory_usage cc_protected_memory_usage device_attributes aggregate_uncorrectable_sram_sources row_remapper_histogram"
    several = several " applications_clocks default_applications_clocks deferred_clocks max_customer_boost_clocks clock_policy clocks_event_reasons_counters"
    several = several " power_profiles gpu_memory_power_readings module_power_readings supported_gpu_target_temp capabilities"
    for (i = split(several, tags, " "); i > 0; i--) left_out[tags[i]] = 1 # name is a text, in names.awk
    printf "" > to
}

{
    sub(/\r$/, "")
    sub(/^[ \t]+/, "")
    if ($0 == "" || index($0, "<process_name") > 1) next # a name is on a line of its own, or we do not know where it ends
}

skipped != "" {
    if (index($0, "</" skipped ">") == 1) skipped = ""
    next
}

in_name { if (index($0, "</process_name>") || /^<\/gpu>/) in_name = 0; if (!/^<\/gpu>/) next }
/^<gpu[ >]/ { inside = gpus = 1 }
/^<current_mig>Enabled/ { mig = 1 }
/^<mig_device>/ { parts = 1 }
/^<\/gpu>/ { inside = 0; tell(); next }

task == "gpus" || !inside {
    if (match($0, /^<[A-Za-z0-9_]+/) && (substr($0, 2, RLENGTH - 1) in left_out)) {
        tag = substr($0, 2, RLENGTH - 1)
        if (begins(tag)) skipped = tag
    } else if (!index($0, "<process_name")) tell()
    next
}

# Task 2, within a GPU.
/^<gpu[ >]/ || /^<uuid>/ || /^Unable to determine/ { tell(); next }
/^<\/?mig_device(s)?>/ { tell(); at_parts = !/<\/mig_devices>/; next }
at_parts { if (/^<(index|gpu_instance_id|compute_instance_id)>/) tell(); next }
/^<(compute_)?processes ?\/?>/ || /^<\/(compute_)?processes>/ { tell(); at_processes = !index($0, "/"); next }
/^<accounted_processes>/ { if (begins("accounted_processes")) skipped = "accounted_processes"; next }
!at_processes { next }
/^<process_info>/ { info = ""; draws = 0 }
/^<process_name>/ {
    title = substr($0, 15)
    in_name = !sub(/<\/process_name>.*/, "", title) # its other lines are for nobody
    goes_on = in_name ? "•••" : ""
    $0 = "<process_name>" masked_name(title) goes_on "</process_name>"
}
/^<type>G</ { draws = 1 }
/^<\/process_info>/ { if (!draws) { $0 = info $0; tell() }; next }
/^<(process_info|gpu_instance_id|compute_instance_id|pid|type|process_name|used_memory)>/ { info = info $0 "\n"; next }
/^[A-Z][A-Za-z\/ !]*$/ { tell() } # N/A, Insufficient Permissions, Unknown Error: they cannot be told

END { print (gpus ? "gpus " : "") (mig ? "mig " : "") (parts ? "parts" : "") }
