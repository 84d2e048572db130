# shellcheck shell=sh disable=SC2034,SC2154 # variables come from nvidia.sh, and go back to it
# Query XML instead of CSV from nvidia-smi where it is needed, for MIG instances.

# has_mig: whether the answer in $out has a GPU in MIG mode. It starts no program, since it runs at every tick.
has_mig() {
    case ",$fields," in *,mig.mode.current,*) ;; *) return 1 ;; esac
    while IFS= read -r line; do
        case $line in *', Enabled, '*) ;; *) continue ;; esac
        fields_before=${fields%%mig.mode.current*}
        while [ -n "$fields_before" ]; do
            fields_before=${fields_before#*,}
            line=${line#*, }
        done
        case $line in 'Enabled, '*) return 0 ;; esac
    done <"$out"
    return 1
}

# collect_without_csv: add XML if CSV is not to be queried; fail if it is, or if XML has no GPU.
collect_without_csv() {
    xml_error=
    case $GPUBOARD_NVIDIA in
        csv) return 1 ;;
        no) # there is no other vendor, or this would not be called
            begin_part
            rc=0
            : >"$out"
            echo 'it is not asked, since GPUBOARD_NVIDIA is no; and no tool of another maker is here' >"$err"
            end_part nvidia-csv
            return 0
            ;;
        auto) [ -e "$SPOOL/mig" ] || return 1 ;;
    esac
    collect_xml
}

# collect_xml: add the XML, which unlike CSV has the MIG instances of a GPU and the processes on each. If there are any, add `nvidia-smi -L`,
# which alone has their UUIDs. SPOOL/mig exists while a GPU is in MIG mode. Fail if XML has no GPU, so that CSV is queried.
collect_xml() {
    begin_part
    query_tool nvidia-smi -q -x
    features=$(awk -v task="$task" -v out_file="$out.kept" -f "$LIB/mask_process_names.awk" -f "$LIB/nvidia_xml.awk" "$out") && mv -f "$out.kept" "$out" || features=
    case $features:$rc in
        gpus*) ;;
        *:127 | *:200) # CSV would fail in the same way
            end_part nvidia-xml
            return 0
            ;;
        *)
            xml_error="nvidia-smi -q -x told no GPU (exit code $rc): whether GPUs are cut into instances is not known"
            part_count=$((part_count - 1))
            return 1
            ;;
    esac
    [ "$task" != gpus ] || case $features in *mig*) : >"$SPOOL/mig" ;; *) rm -f "$SPOOL/mig" ;; esac
    end_part nvidia-xml
    case $features in
        *instances*)
            begin_part
            query_tool nvidia-smi -L
            end_part nvidia-xml/list
            ;;
    esac
}
