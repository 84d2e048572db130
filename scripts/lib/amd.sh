# shellcheck shell=sh disable=SC2154 # variables come from collect.sh
# GPUs of AMD, by amd-smi or the older rocm-smi. Both are slow (Python), so each tick asks only for what changes.
# Names and other constants are read every five minutes, and kept in the spool for both tasks.

AMD_NAMES_EVERY=300
# What changes; an amd-smi that does not know one of these options is called without any.
AMD_METRICS='--usage --mem-usage --temperature --power --clock --ecc --pcie --fan'
ROCM_NAMES='--showid --showuniqueid --showproductname --showbus --showserial --showvbios --showdriverversion --showmaxpower'
ROCM_METRICS='--showuse --showmemuse --showmeminfo vram gtt --showtemp --showpower --showclocks --showfan'

# detect_amd: set amd_tools to the tools that are here, the better one first. ROCm installs into a folder that is not in the PATH of cron.
detect_amd() {
    amd_tools=
    case ${GPUBOARD_AMD:-auto} in
        no) return 1 ;;
        auto) wanted='amd-smi rocm-smi' ;;
        *) wanted=$GPUBOARD_AMD amd_tools=$GPUBOARD_AMD ;; # report it if it is missing
    esac
    for tool in $wanted; do
        for path in "$tool" "${ROCM_PATH:-/opt/rocm}/bin/$tool"; do
            command -v "$path" >/dev/null || continue
            amd_tools="${amd_tools#"$tool"} $path"
            break
        done
    done
    [ -n "$amd_tools" ]
}

# is_unanswered: whether the tool hangs or is missing, so that another call would fail too.
is_unanswered() {
    case $rc in 124 | 127 | 137 | 200) return 0 ;; esac
    return 1
}

# query_amd_names: write the names of the GPUs to $out, by amd_tool.
# shellcheck disable=SC2086 # one word each
query_amd_names() {
    amd_form=${amd_tool##*/}
    if [ "$amd_form" = rocm-smi ]; then
        query_tool "$amd_tool" $ROCM_NAMES --json
        return
    fi
    query_tool "$amd_tool" list -e --json
    [ "$rc" = 0 ] || is_unanswered || query_tool "$amd_tool" list --json # before ROCm 6.4
}

# choose_amd_tool: set amd_tool to the first tool that prints the names of the GPUs, and store them.
choose_amd_tool() {
    for amd_tool in $amd_tools; do
        query_amd_names
        [ "$rc" != 0 ] || break
        ! is_unanswered || return 1
    done
    [ "$rc" = 0 ] || return 1
    store_amd_names && return
    rc=74
    echo "the output of $amd_form could not be saved: is the disk of the spool full?" >>"$err"
    return 1
}

# store_amd_names: store $out, and what `amd-smi static` prints.
store_amd_names() {
    { cp "$out" "$NEW/amd.names" && : >"$NEW/amd.static"; } || return 1
    if [ "$amd_form" = amd-smi ]; then
        query_tool "$amd_tool" static --json
        [ "$rc" != 0 ] || cp "$out" "$NEW/amd.static" || return 1
    fi
    mv -f "$NEW/amd.names" "$NEW/amd.static" "$SPOOL/" || return 1
    read_uptime
    names_read_at=$up amd_all=
    store_amd_state
}

# store_amd_state: store when the names were read, by which tool, and whether it must be called without options.
store_amd_state() { printf '%s %s %s\n' "$names_read_at" "$amd_tool" "$amd_all" >"$NEW/amd" && mv -f "$NEW/amd" "$SPOOL/amd"; }

# add_amd_names: set amd_tool and amd_form, its name, and add the parts with the names. If no tool answers, add the last error.
add_amd_names() {
    names_read_at='' amd_tool='' amd_all=''
    [ ! -r "$SPOOL/amd" ] || read -r names_read_at amd_tool amd_all <"$SPOOL/amd" || amd_tool=
    amd_form=${amd_tool##*/}
    case " $amd_tools " in *" ${amd_tool:-none} "*) ;; *) names_read_at= ;; esac
    begin_part
    read_uptime
    if [ -z "$names_read_at" ] || [ ! -s "$SPOOL/amd.names" ] || [ "$up" -lt "$names_read_at" ] || [ $((up - names_read_at)) -ge "$AMD_NAMES_EVERY" ]; then
        choose_amd_tool || {
            rm -f "$SPOOL/amd"
            end_part "$amd_form/names"
            return 1
        }
    fi
    parts="$parts part=$amd_form/names code=0 stderr_file= $SPOOL/amd.names"
    [ ! -s "$SPOOL/amd.static" ] || parts="$parts part=$amd_form/static code=0 stderr_file= $SPOOL/amd.static"
}

# end_amd_part FORM: add the part; if the tool failed, read the names again at the next tick.
end_amd_part() {
    [ "$rc" = 0 ] || is_unanswered || rm -f "$SPOOL/amd"
    end_part "$1"
}

# collect_amd_gpus: add the metrics of the GPUs.
# shellcheck disable=SC2086 # one word each
collect_amd_gpus() {
    add_amd_names || return 0
    begin_part
    if [ "$amd_form" = rocm-smi ]; then
        query_tool "$amd_tool" $ROCM_METRICS --json
    elif [ -n "$amd_all" ]; then
        query_tool "$amd_tool" metric --json
    else
        query_tool "$amd_tool" metric $AMD_METRICS --json
        if [ "$rc" != 0 ] && ! is_unanswered; then
            query_tool "$amd_tool" metric --json
            amd_all=all
            [ "$rc" != 0 ] || store_amd_state
        fi
    fi
    end_amd_part "$amd_form/metric"
}

# collect_amd_processes: add the processes. JSON of rocm-smi does not say on which GPUs a process is, so use its text.
collect_amd_processes() {
    add_amd_names || return 0
    begin_part
    if [ "$amd_form" = rocm-smi ]; then
        query_tool "$amd_tool" --showpids --showpidgpus
    else
        query_tool "$amd_tool" process --json
    fi
    end_amd_part "$amd_form/processes"
}
