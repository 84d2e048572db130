#!/bin/sh
# install.sh: try gpuboard, and test it, on a Debian or Ubuntu machine with
# python3 3.9 or newer.
#
#   ./install.sh run            one snapshot of this machine, into data/
#   ./install.sh test [quick]   install what the tests need (apt as root or by
#                               sudo, pip into .venv), then run them all
#
# `quick` stops after the checks of the code and the first round of tests.
set -eu
cd "$(dirname "$0")"
ROOT=$PWD

say() { printf '%s\n' "$*"; }
step() { printf '\n== %s\n' "$*"; }

# COMMAND:PACKAGE pairs of what the tests use beside python.
TEST_TOOLS='bats:bats parallel:parallel shellcheck:shellcheck shfmt:shfmt busybox:busybox gawk:gawk original-awk:original-awk mawk:mawk
ssh:openssh-client sshd:openssh-server cron:cron faketime:faketime ps:procps ip:iproute2 setpriv:util-linux'

# install_packages PAIR...: installs by apt what is missing, or says which command would.
install_packages() {
    packages=
    for pair in "$@"; do
        PATH=$PATH:/usr/sbin:/sbin command -v "${pair%:*}" >/dev/null || packages="$packages ${pair#*:}"
    done
    python3 -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3 python3-venv"
    [ -n "$packages" ] || return 0
    sudo=
    if [ "$(id -u)" != 0 ]; then
        sudo='sudo -n'
        $sudo true 2>/dev/null || {
            say "Not installed, for want of root:$packages. Some tests will be skipped; to have them: sudo apt-get install$packages"
            return 0
        }
    fi
    say "Installing$packages"
    # shellcheck disable=SC2086 # one word a package
    { $sudo apt-get update -q && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $packages; } >/dev/null ||
        say "apt-get could not install all of:$packages"
}

# make_venv EXTRA: the package, editable, with what it needs; again only if pyproject.toml changed.
make_venv() {
    stamp=.venv/.installed
    if [ ! -x .venv/bin/python ] || [ ! -e "$stamp" ] || [ -n "$(find pyproject.toml -newer "$stamp")" ]; then
        say "Installing gpuboard into .venv"
        [ -x .venv/bin/python ] || python3 -m venv .venv
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$1]"
        touch "$stamp"
    fi
}

shell_files() { find install.sh .ci/run scripts tests -name '*.sh' -o -name '*.bash' -o -path .ci/run -o -path '*stand-ins/nvidia-smi'; }

check_code() {
    step 'Code: ruff, mypy, shellcheck, shfmt'
    .venv/bin/ruff format --check --quiet .
    .venv/bin/ruff check --quiet .
    .venv/bin/mypy --no-error-summary
    # shellcheck disable=SC2046 # one word a file
    shellcheck -x $(shell_files)
    shellcheck -S warning -x tests/host/*.bats
    # shellcheck disable=SC2046
    shfmt -d -i 4 -ci $(shell_files) tests/host/*.bats
}

# run_bats SHELL: the host scripts under this shell.
run_bats() {
    step "Host scripts under $1"
    log=$(mktemp)
    code=0
    GPUBOARD_TEST_SHELL=$1 bats --jobs 4 --formatter tap tests/host >"$log" || code=$?
    grep -E '^not ok|^#|# skip' "$log" || :
    passed=$((passed + $(grep -c '^ok' "$log" || :) - $(grep -c '^ok .*# skip' "$log" || :)))
    failed=$((failed + $(grep -c '^not ok' "$log" || :)))
    skipped=$((skipped + $(grep -c '^ok .*# skip' "$log" || :)))
    rm -f "$log"
    [ "$code" = 0 ] || [ "$failed" != 0 ] || failed=1
}

run_tests() {
    # shellcheck disable=SC2086 # one word a pair
    install_packages $TEST_TOOLS
    make_venv dev
    check_code
    step 'Python'
    .venv/bin/python -m pytest --quiet
    passed=0 failed=0 skipped=0
    for shell in dash bash ash; do
        run_bats "$shell"
        [ "${1:-}" != quick ] || break
        [ "$failed" = 0 ] || break
    done
    step 'All host tests'
    say "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
}

# snapshot_here: what a GPU host would send, taken on this machine, apart from any loops that run here.
snapshot_here() {
    HOST=${HOST:-$(uname -n)}
    HOST=${HOST%%.*}
    spool=$(mktemp -d)
    trap 'rm -rf "$spool"' EXIT
    HOST=$HOST GPUBOARD_SPOOL=$spool GPUBOARD_DEST=$ROOT/data scripts/gpu-run.sh once
    say "The snapshot of this machine is in data/$HOST/; gpus.csv says:"
    cat "data/$HOST/gpus.csv"
}

print_help() { sed -n '2,/^[^#]/{/^#/{s/^# \{0,1\}//;p;};}' install.sh; }

case ${1:-} in
    run) snapshot_here ;;
    test) run_tests "${2:-}" ;;
    -h | --help) print_help ;;
    *)
        print_help >&2
        exit 2
        ;;
esac
