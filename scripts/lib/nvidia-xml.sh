# shellcheck shell=sh disable=SC2034,SC2154 # variables come from nvidia.sh, and go back to it
# When nvidia-smi's XML is asked for instead of its CSV, and how.

# has_mig: whether the answer in $out has a GPU in MIG mode. No program is started for it: this is asked at every tick.
has_mig() {
    case ",$fields," in *,mig.mode.current,*) ;; *) return 1 ;; esac
    while IFS= read -r line; do
        case $line in *', Enabled, '*) ;; *) continue ;; esac
        before=${fields%%mig.mode.current*}
        while [ -n "$before" ]; do
            before=${before#*,}
            line=${line#*, }
        done
        case $line in 'Enabled, '*) return 0 ;; esac
    done <"$out"
    return 1
}

# tell_otherwise: tells it if CSV is not what is asked for; fails if it is, or if nothing else came.
tell_otherwise() {
    no_xml=
    case $GPUBOARD_NVIDIA in
        csv) return 1 ;;
        no) # and there is no other maker, or we would not be called
            begin_part
            rc=0
            : >"$out"
            echo 'it is not asked, since GPUBOARD_NVIDIA is no; and no tool of another maker is here' >"$err"
            end_part nvidia-csv
            return 0
            ;;
        auto) [ -e "$SPOOL/mig" ] || return 1 ;;
    esac
    tell_xml
}

# end_csv: the answer in $out is told; and if XML was asked for in vain, that too.
end_csv() {
    [ -z "$no_xml" ] || [ "$rc" != 0 ] || echo "$no_xml" >>"$err"
    end_part nvidia-csv
}

# tell_xml: tells its XML, which has what CSV has not: the instances (MIG) that a GPU is cut into, and who is on each. Where there are any, their
# list is told too: their UUIDs stand only there. SPOOL/mig is there while a GPU is in MIG mode. Fails where no GPU came, for CSV to be asked.
tell_xml() {
    begin_part
    ask nvidia-smi -q -x
    found=$(awk -v task="$task" -v to="$out.kept" -f "$LIB/names.awk" -f "$LIB/xml.awk" "$out") && mv -f "$out.kept" "$out" || found=
    case $found:$rc in
        gpus*) ;;
        *:127 | *:200) # CSV would fail in the same way
            end_part nvidia-xml
            return 0
            ;;
        *)
            no_xml="nvidia-smi -q -x told no GPU (exit code $rc): whether GPUs are cut into instances is not known"
            part_count=$((part_count - 1))
            return 1
            ;;
    esac
    [ "$task" != gpus ] || case $found in *mig*) : >"$SPOOL/mig" ;; *) rm -f "$SPOOL/mig" ;; esac
    end_part nvidia-xml
    case $found in
        *parts*)
            begin_part
            ask nvidia-smi -L
            end_part nvidia-xml/list
            ;;
    esac
}
