# shellcheck shell=sh
# Read or change on the web host which GPU hosts may push, for `gpuboard deploy`; it is sent to the stdin of sh.
# Arguments: the folders of the scripts and of the data, or - for those of ./install.sh web; then `state`, `arrival NAME`,
# `enrol NAME KEY` or `revoke NAME`.

LC_ALL=C
export LC_ALL

# fail_missing WHAT: say that the web host is not installed.
fail_missing() {
    echo "$1 is missing: run ./install.sh web first, as $(id -un)" >&2
    exit 2
}

# print_state: print the time, the keys that are enrolled, and when the last snapshot of each host arrived.
print_state() {
    echo "now $(date +%s)"
    "$enrol" list | sed 's/^/enrolled /'
    cd "$data" && for place in */host.txt; do
        [ ! -f "$place" ] || echo "arrived ${place%/host.txt} $(stat -c %Z "$place")"
    done
    echo "end 1"
}

scripts=$1 data=$2 action=$3
shift 3
[ "$scripts" != - ] || scripts=$HOME/.local/share/gpuboard/scripts
conf=$HOME/.config/gpuboard/gpuboard.conf
[ -f "$conf" ] || conf=/etc/gpuboard/gpuboard.conf
[ "$data" != - ] || data=$(sed -n 's/^GPUBOARD_DATA=//p' "$conf" 2>/dev/null | head -n 1)
enrol=$scripts/gpu-enrol.sh
[ -x "$enrol" ] || fail_missing gpu-enrol.sh
[ -d "$data" ] || fail_missing "the data folder $data"
case $action in
    state) print_state ;;
    arrival) stat -c %Z "$data/$1/host.txt" 2>/dev/null || echo 0 ;;
    enrol) printf '%s\n' "$2" | "$enrol" --data "$data" add "$1" ;;
    revoke) "$enrol" remove "$1" ;;
esac
