#!/bin/sh
# install.sh: try, install or test gpuboard.
#
#   ./install.sh run [OPTIONS]  show a live board of this machine's GPUs, or of a
#                               simulated lab if it has none; options are those
#                               of `gpuboard here` or `gpuboard demo`
#   ./install.sh host [--name H] [--dest D]
#                               set up a GPU host: push its snapshots to D, which
#                               is ssh://user@web, user@web:/path/data or a
#                               folder; H is the host's name on the board,
#                               `hostname -s` by default
#   ./install.sh web [--folder F] [--data D] [--listen ADDRESS:PORT]
#                               set up the web host: build the board in F/www (F
#                               is ~/gpuboard by default); D is the folder that
#                               hosts push to, F/data by default; --listen serves
#                               the board at that address
#   ./install.sh remove         undo what host and web did on this machine; data,
#                               site and history are kept
#   ./install.sh test [quick]   install what the tests need (with apt as root or
#                               sudo, and pip into .venv), then run them all;
#                               quick stops after the first round
#
# host, web and remove need no root and can be repeated. They install programs
# to ~/.local/share/gpuboard, settings to ~/.config/gpuboard/gpuboard.conf and
# lines in your crontab; this folder is not needed afterwards.
# All commands but host need Python 3.9 or newer.
set -eu
CALLER=$PWD
script=$0
[ ! -h "$script" ] || script=$(readlink -f "$script")
CDPATH='' cd -- "$(dirname -- "$script")"
ROOT=$PWD
# shellcheck source=install/common.sh
. install/common.sh

# has_own_gpu: whether the tool of a vendor lists a GPU of this machine.
has_own_gpu() {
    case $(timeout -k 1 10 nvidia-smi -L 2>/dev/null || :) in GPU\ *) return 0 ;; esac
    for place in '' /opt/rocm/bin/; do
        case $(timeout -k 1 10 "${place}amd-smi" list --json 2>/dev/null || :) in *'"gpu":'*) return 0 ;; esac
        case $(timeout -k 1 10 "${place}rocm-smi" --showid --json 2>/dev/null || :) in *'"card'*) return 0 ;; esac
    done
    return 1
}

# run_here OPTIONS...: show the board of this machine, or of a simulated lab.
run_here() {
    make_venv ''
    command=here
    has_own_gpu || {
        print_line 'No GPU was found (by nvidia-smi, amd-smi or rocm-smi): showing a simulated lab.'
        command=demo
    }
    exec .venv/bin/python -m site_builder "$command" "$@"
}

verb=${1:-}
[ $# = 0 ] || shift
for word in "$@"; do
    case $word in -h | --help) print_help install.sh && exit ;; esac
done
case $verb in
    run) run_here "$@" ;;
    test) exec tests/run.sh "$@" ;;
    host | web | remove | key)
        # shellcheck source=install/user.sh
        . install/user.sh
        # shellcheck source=/dev/null
        . "install/$verb.sh"
        "install_$verb" "$@"
        ;;
    -h | --help) print_help install.sh ;;
    *)
        print_help install.sh >&2
        exit 2
        ;;
esac
