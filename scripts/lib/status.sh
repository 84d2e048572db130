# shellcheck shell=sh disable=SC2034,SC2154 # variables come from gpu-check.sh, and go back to it
# gpu-check.sh status: a line for each loop and one for the push; set `code` to 1 if something is wrong.

# print_loop TASK NAME FILE: print its state, its last error, and that of the first tool that fails.
print_loop() {
    read_loop_state "$1"
    case $state in
        running) message="runs (pid $pid), last snapshot $age s ago" ;;
        hung) message="hangs (pid ${pid:-unknown}), last snapshot ${age:-unknown} s ago" ;;
        stopped) message='is not running' ;;
    esac
    [ "$state" = running ] || code=1
    printf '%-12s %s\n' "$2" "$message"
    [ ! -s "$RUN/$1.err" ] || printf '%-12s message: %s\n' '' "$(tail -n 1 "$RUN/$1.err")"
    [ ! -s "$SPOOL/$3" ] || awk '
        NR == 1 { failed = !/ rc=0$/; sub(/.* rc=/, ""); rc = $0; tool = "nvidia-smi"; in_part = 1; next }
        /^# part / {
            in_part = $NF != "rc=0" && !seen
            if (in_part) { seen = 1; tool = $3; sub(/\/.*/, "", tool); sub(/^nvidia-.*/, "nvidia-smi", tool); rc = substr($NF, 4) }
            next
        }
        failed && in_part && !reason && !/^# end/ && /[^ ]/ { sub(/^# err /, ""); reason = $0 }
        END { if (failed) printf "%-12s %s fails (exit %s): %s\n", "", tool, rc, reason }' "$SPOOL/$3"
}

# print_push: print whether snapshots arrive.
print_push() {
    arrived_up='' dest=''
    [ ! -s "$SPOOL/sent" ] || read -r arrived_up dest <"$SPOOL/sent"
    read_uptime
    set_hang_limit "$GPUBOARD_PS_EVERY"
    if [ -e "$SPOOL/push.failed" ]; then
        message="fails: $(cat "$SPOOL/push.failed")"
    elif [ -z "$arrived_up" ]; then
        message='nothing has arrived yet'
    elif [ $((up - arrived_up)) -gt "$hang_limit" ]; then
        message="nothing has arrived at $dest for $((up - arrived_up)) s"
    else
        printf '%-12s last arrived %s s ago at %s\n' push "$((up - arrived_up))" "$dest"
        return
    fi
    code=1
    printf '%-12s %s\n' push "$message"
}

# print_registration: print whether the host is registered in Consul, if that was asked for.
print_registration() {
    [ -e "$SPOOL/registered" ] || return 0
    agent='' service=''
    read -r agent service _ <"$SPOOL/registered" || :
    if [ -e "$SPOOL/register.failed" ]; then
        code=1
        message="not registered: $(cat "$SPOOL/register.failed")"
    elif [ -z "$agent" ]; then
        message='will be registered at the next push that arrives'
    else
        message="registered as $service-$HOST at $agent"
    fi
    printf '%-12s %s\n' Consul "$message"
}

# print_status: print the state of HOST.
print_status() {
    echo "$HOST:"
    print_loop 1 '1 GPUs' gpus.csv
    print_loop 2 '2 processes' processes.csv
    print_loop 3 '3 ps, host' host.txt
    [ ! -s "$SPOOL/check.failed" ] || printf '%-12s message: %s\n' start "$(tail -n 1 "$SPOOL/check.failed")"
    print_push
    print_registration
}
