# shellcheck shell=sh disable=SC2034,SC2154 # variables come from gpu-check.sh, and go back to it
# gpu-check.sh status: a line a loop and one for the push; `code` becomes 1 where something is not well.

# print_loop TASK NAME FILE: its state, its last words if it has any, and those of the first tool that fails.
print_loop() {
    look "$1"
    case $state in
        running) words="runs (pid $pid), last snapshot $age s ago" ;;
        hung) words="hangs (pid ${pid:-unknown}), last snapshot ${age:-unknown} s ago" ;;
        stopped) words='does not run' ;;
    esac
    [ "$state" = running ] || code=1
    printf '%-12s %s\n' "$2" "$words"
    [ ! -s "$RUN/$1.err" ] || printf '%-12s it says: %s\n' '' "$(tail -n 1 "$RUN/$1.err")"
    [ ! -s "$SPOOL/$3" ] || awk '
        NR == 1 { failed = !/ rc=0$/; sub(/.* rc=/, ""); rc = $0; tool = "nvidia-smi"; here = 1; next }
        /^# part / {
            here = $NF != "rc=0" && !found
            if (here) { found = 1; tool = $3; sub(/\/.*/, "", tool); sub(/^nvidia-.*/, "nvidia-smi", tool); rc = substr($NF, 4) }
            next
        }
        failed && here && !words && !/^# end/ && /[^ ]/ { sub(/^# err /, ""); words = $0 }
        END { if (failed) printf "%-12s %s fails (exit %s): %s\n", "", tool, rc, words }' "$SPOOL/$3"
}

# print_push: whether what is taken arrives.
print_push() {
    stamp='' dest=''
    [ ! -s "$SPOOL/sent" ] || read -r stamp dest <"$SPOOL/sent"
    seconds_up
    set_patience "$GPUBOARD_PS_EVERY"
    if [ -e "$SPOOL/push.failed" ]; then
        words="fails: $(cat "$SPOOL/push.failed")"
    elif [ -z "$stamp" ]; then
        words='nothing has arrived yet'
    elif [ $((up - stamp)) -gt "$patience" ]; then
        words="nothing has arrived at $dest for $((up - stamp)) s"
    else
        printf '%-12s last arrived %s s ago at %s\n' push "$((up - stamp))" "$dest"
        return
    fi
    code=1
    printf '%-12s %s\n' push "$words"
}

# print_registration: whether Consul hears of it, where that was asked for.
print_registration() {
    [ -e "$SPOOL/registered" ] || return 0
    place='' service=''
    read -r place service _ <"$SPOOL/registered" || :
    if [ -e "$SPOOL/register.failed" ]; then
        code=1
        words="not registered: $(cat "$SPOOL/register.failed")"
    elif [ -z "$place" ]; then
        words='is told at the next push that arrives'
    else
        words="registered as $service-$HOST at $place"
    fi
    printf '%-12s %s\n' Consul "$words"
}

print_status() {
    echo "$HOST:"
    print_loop 1 '1 GPUs' gpus.csv
    print_loop 2 '2 processes' processes.csv
    print_loop 3 '3 ps, host' host.txt
    print_push
    print_registration
}
