# shellcheck shell=sh disable=SC2154 # variables come from told.sh
# GPUs of AMD, as amd-smi tells them, or rocm-smi, which is older. Both are Python and take a good part of a second: only what moves is asked
# at each tick. What names the GPUs is asked every five minutes, and kept in the spool for both tasks.

AMD_NAMES_EVERY=300
# What moves; an amd-smi that does not know one of these is asked for all that it knows.
AMD_METRICS='--usage --mem-usage --temperature --power --clock --ecc --pcie --fan'
ROCM_NAMES='--showid --showuniqueid --showproductname --showbus --showserial --showvbios --showdriverversion --showmaxpower'
ROCM_METRICS='--showuse --showmemuse --showmeminfo vram --showtemp --showpower --showclocks --showfan'

# amd_here: sets amd_tools to those that may be asked, the better one first; ROCm has its own in a folder of which cron does not know.
amd_here() {
    amd_tools=
    case ${GPUBOARD_AMD:-auto} in
        no) return 1 ;;
        auto) wanted='amd-smi rocm-smi' ;;
        *) wanted=$GPUBOARD_AMD amd_tools=$GPUBOARD_AMD ;; # that it is missing is told
    esac
    for tool in $wanted; do
        for place in "$tool" "${ROCM_PATH:-/opt/rocm}/bin/$tool"; do
            command -v "$place" >/dev/null || continue
            amd_tools="${amd_tools#"$tool"} $place"
            break
        done
    done
    [ -n "$amd_tools" ]
}

# unanswered: whether the tool hangs or is missing, so that another question would not be answered either.
unanswered() {
    case $rc in 124 | 127 | 137 | 200) return 0 ;; esac
    return 1
}

# ask_amd_names: leaves in $out what names the GPUs, by the tool amd.
# shellcheck disable=SC2086 # one word each
ask_amd_names() {
    amd_form=${amd##*/}
    if [ "$amd_form" = rocm-smi ]; then
        ask "$amd" $ROCM_NAMES --json
        return
    fi
    ask "$amd" list -e --json
    [ "$rc" = 0 ] || unanswered || ask "$amd" list --json # before ROCm 6.4
}

# find_amd: asks one tool after the other for the names, until one answers; they are kept.
find_amd() {
    for amd in $amd_tools; do
        ask_amd_names
        [ "$rc" != 0 ] || break
        ! unanswered || return 1
    done
    [ "$rc" = 0 ] || return 1
    keep_amd_names && return
    rc=74
    echo "what $amd_form told could not be kept: is the disk of the spool full?" >>"$err"
    return 1
}

# keep_amd_names: what is in $out, and what amd-smi tells beside that.
keep_amd_names() {
    { cp "$out" "$NEW/amd.names" && : >"$NEW/amd.static"; } || return 1
    if [ "$amd_form" = amd-smi ]; then
        ask "$amd" static --json
        [ "$rc" != 0 ] || cp "$out" "$NEW/amd.static" || return 1
    fi
    mv -f "$NEW/amd.names" "$NEW/amd.static" "$SPOOL/" || return 1
    seconds_up
    named=$up amd_all=
    keep_amd
}

# keep_amd: when the names were asked, by which tool, and whether it must be asked for all that it knows.
keep_amd() { printf '%s %s %s\n' "$named" "$amd" "$amd_all" >"$NEW/amd" && mv -f "$NEW/amd" "$SPOOL/amd"; }

# tell_amd_names: sets amd to the tool that answers, amd_form to its name. Where none does, what the last one said is the answer.
tell_amd_names() {
    named='' amd='' amd_all=''
    [ ! -r "$SPOOL/amd" ] || read -r named amd amd_all <"$SPOOL/amd" || amd=
    amd_form=${amd##*/}
    case " $amd_tools " in *" ${amd:-none} "*) ;; *) named= ;; esac
    begin_part
    seconds_up
    if [ -z "$named" ] || [ ! -s "$SPOOL/amd.names" ] || [ "$up" -lt "$named" ] || [ $((up - named)) -ge "$AMD_NAMES_EVERY" ]; then
        find_amd || {
            rm -f "$SPOOL/amd"
            end_part "$amd_form/names"
            return 1
        }
    fi
    parts="$parts part=$amd_form/names code=0 cries= $SPOOL/amd.names"
    [ ! -s "$SPOOL/amd.static" ] || parts="$parts part=$amd_form/static code=0 cries= $SPOOL/amd.static"
}

# tell_amd FORM: the answer; where the tool fails, the names are asked anew at the next tick.
tell_amd() {
    [ "$rc" = 0 ] || unanswered || rm -f "$SPOOL/amd"
    end_part "$1"
}

# shellcheck disable=SC2086 # one word each
amd_gpus() {
    tell_amd_names || return 0
    begin_part
    if [ "$amd_form" = rocm-smi ]; then
        ask "$amd" $ROCM_METRICS --json
    elif [ -n "$amd_all" ]; then
        ask "$amd" metric --json
    else
        ask "$amd" metric $AMD_METRICS --json
        if [ "$rc" != 0 ] && ! unanswered; then
            ask "$amd" metric --json
            amd_all=all
            [ "$rc" != 0 ] || keep_amd
        fi
    fi
    tell_amd "$amd_form/metric"
}

# amd_processes: rocm-smi's JSON does not tell on which GPUs a process is, so that its text is asked for.
amd_processes() {
    tell_amd_names || return 0
    begin_part
    if [ "$amd_form" = rocm-smi ]; then
        ask "$amd" --showpids --showpidgpus
    else
        ask "$amd" process --json
    fi
    tell_amd "$amd_form/processes"
}
