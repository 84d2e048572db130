#!/bin/sh
# gpu-doctor.sh: check everything that gpuboard needs on this GPU host.
#
#   gpu-doctor.sh [HOST]             each check: pass, warn, fail or skip, and
#                                    what to do
#   gpu-doctor.sh --json [HOST]      the same as JSON
#   gpu-doctor.sh --verbose [HOST]   show skipped checks too, and cut nothing
#
# HOST is this host's name on the board; by default the name of the loops
# here, or else `hostname -s`. --conf FILE names the settings file.
# Nothing is changed, root is not needed, and every external command has a
# time limit. Exit 0 if all is well, 1 for a warning (the host is on the
# board), 2 for a failure or wrong use. A check that is skipped says why, and
# does not count.
# docs/doctor.md describes each check.
set -eu
case $0 in */*) HERE=${0%/*} ;; *) HERE=. ;; esac
[ ! -h "$0" ] || HERE=$(dirname "$(readlink -f "$0")")
LIB=$HERE/lib
# shellcheck source=scripts/lib/common.sh
. "$LIB/common.sh"
# shellcheck source=scripts/lib/loops.sh
. "$LIB/loops.sh"
# shellcheck source=scripts/lib/doctor.sh
. "$LIB/doctor.sh"
# shellcheck source=scripts/lib/xid.sh
. "$LIB/xid.sh"
# shellcheck source=scripts/lib/doctor_nvidia.sh
. "$LIB/doctor_nvidia.sh"
# shellcheck source=scripts/lib/doctor_amd.sh
. "$LIB/doctor_amd.sh"
# shellcheck source=scripts/lib/doctor_machine.sh
. "$LIB/doctor_machine.sh"
# shellcheck source=scripts/lib/doctor_cron.sh
. "$LIB/doctor_cron.sh"
# shellcheck source=scripts/lib/doctor_push.sh
. "$LIB/doctor_push.sh"
# shellcheck source=scripts/lib/doctor_ssh.sh
. "$LIB/doctor_ssh.sh"
# shellcheck source=scripts/lib/doctor_consul.sh
. "$LIB/doctor_consul.sh"

# The checks in their order: a group, then its checks. The function of a check is inspect_NAME, with _ for -.
CHECKS='
settings: settings name tools
driver: hung driver gpus persistence amd kernel-log
host: hidepid spool
start: cron-daemon cron-allowed crontab linger loops
push: dest folder ssh-key ssh consul clock push'

# make_work_folder: set work to a temporary folder. The disk may be full, which people call this for, so try other places too.
make_work_folder() {
    for base in "${TMPDIR:-/tmp}" /dev/shm "/run/user/$(id -u)"; do
        work=$(mktemp -d "$base/gpu-doctor.XXXXXX" 2>/dev/null) || continue
        ! (head -c 262144 /dev/zero >"$work/room" && rm "$work/room") 2>/dev/null || return 0
        rm -rf "$work"
    done
    die "there is no room for a temporary folder, neither in ${TMPDIR:-/tmp} nor in /dev/shm: is the disk full?"
}

# choose_host: set HOST to the name that was given, else this machine's name, else the only other name that was ever started here.
choose_host() {
    HOST=${host:-$(print_own_name)}
    [ -n "$host" ] || [ -d "$GPUBOARD_SPOOL/$HOST/run" ] || for folder in "$GPUBOARD_SPOOL"/*/run; do
        [ -d "$folder" ] || break
        folder=${folder%/run}
        HOST=${folder##*/}
    done
    SPOOL=$GPUBOARD_SPOOL/$HOST
    RUN=$SPOOL/run
}

# prepare_checks: load the settings. If that fails, it is the result of a check, and checks that need them are skipped.
prepare_checks() {
    [ -n "${HOME:-}" ] || HOME=$(getent passwd "$(id -u)" | cut -d: -f6) || HOME=/
    settings_error=$( (load_settings && set_spool_root) 2>&1) || {
        settings_error=${settings_error#"${0##*/}: "}
        GPUBOARD_LIMIT=10 GPUBOARD_GPUS_EVERY=20 GPUBOARD_PROCESSES_EVERY=20 GPUBOARD_PS_EVERY=10 GPUBOARD_DEST=''
        GPUBOARD_SPOOL=/var/tmp/gpuboard-$(id -u)
        choose_host
        return 0
    }
    load_settings 2>/dev/null
    set_spool_root
    choose_host
    [ -n "${GPUBOARD_DEST:-}" ] || [ ! -s "$SPOOL/given" ] || IFS= read -r GPUBOARD_DEST <"$SPOOL/given" || : # given in the crontab
}

as_json='' verbose='' host=''
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) print_help "$0" && exit ;;
        --json) as_json=yes ;;
        --verbose) verbose=yes ;;
        --conf)
            [ $# -ge 2 ] || die '--conf needs a file'
            GPUBOARD_CONF=$2
            shift
            ;;
        -*) die "unknown option $1: see gpu-doctor.sh --help" ;;
        *)
            [ -z "$host" ] || die 'too many arguments: see gpu-doctor.sh --help'
            check_host_name "$1"
            host=$1
            ;;
    esac
    shift
done
command -v timeout >/dev/null || die 'timeout is missing, and no check runs without it: install coreutils'
trap 'exit 143' TERM INT HUP
make_work_folder
trap 'rm -rf "$work"' EXIT
prepare_checks
run_checks
