#!/bin/sh
# tests/run.sh: what ./install.sh test does.
#
#   tests/run.sh [full]    install what the tests need (apt as root or by sudo,
#                          pip into .venv), then run everything
#   tests/run.sh quick     the same, without the tests that take long
#   tests/run.sh python    the Python tests of quick: what depends on the
#                          version of Python
#   tests/run.sh parts full|quick
#                          run everything, with the tools that are there
#   tests/run.sh checks    ruff, mypy, import-linter, shellcheck, shfmt
#   tests/run.sh host [quick]
#                          the tests of the scripts
set -eu
cd "$(dirname "$0")/.."
# under nohup and in the background of a script, tests would wait for ever for what ignores the signal that they send
if [ -z "${GPUBOARD_TEST_SIGNALS:-}" ] && command -v python3 >/dev/null; then
    GPUBOARD_TEST_SIGNALS=default exec python3 tests/default_signals.py sh tests/run.sh "$@"
fi
unset GPUBOARD_TEST_SIGNALS
# shellcheck source=install/common.sh
. install/common.sh
export PIP_COMPILE=0          # the tests install often, and use little of what they install
unset PYTHONDONTWRITEBYTECODE # each worker of pytest would compile all tests, and each command the whole program

step() { printf '\n== %s\n' "$*"; }

# COMMAND:PACKAGE pairs of what the tests use beside python.
TEST_TOOLS='bats:bats parallel:parallel shellcheck:shellcheck shfmt:shfmt busybox:busybox gawk:gawk original-awk:original-awk mawk:mawk
ssh:openssh-client sshd:openssh-server cron:cron faketime:faketime ps:procps ip:iproute2 setpriv:util-linux openssl:openssl
chromium:chromium nginx:nginx-light fcgiwrap:fcgiwrap apache2:apache2-bin promtool:prometheus npm:npm curl:curl
zsh:zsh fish:fish mandoc:mandoc man:man-db
sudo:sudo lighttpd:lighttpd caddy:caddy htpasswd:apache2-utils ansible-playbook:ansible-core systemd-analyze:systemd docker:docker.io'

# install_packages PAIR...: installs by apt what is missing, or says which command would.
install_packages() {
    packages=
    for pair in "$@"; do
        command -v "${pair%:*}" >/dev/null || packages="$packages ${pair#*:}"
    done
    /usr/bin/python3 -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3-venv" # for the users of tests/support/machine.py
    [ -e /usr/share/bash-completion/bash_completion ] || packages="$packages bash-completion"     # it has no command of its own
    [ -e /usr/lib/lighttpd/mod_openssl.so ] && [ -e /usr/lib/lighttpd/mod_deflate.so ] || packages="$packages lighttpd-mod-openssl lighttpd-mod-deflate"
    [ -n "$packages" ] || return 0
    become_root || {
        print_line "Not installed, for want of root:$packages. Some tests will be skipped; to have them: sudo apt-get install$packages"
        return 0
    }
    # shellcheck disable=SC2086 # one word a package
    apt_install $packages || print_line "apt-get could not install all of:$packages"
}

# debian_mirror: where this machine's own apt sources say that Debian is; nothing if they name none.
debian_mirror() {
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
        [ ! -r "$file" ] || sed -n \
            -e 's/^deb[[:space:]]\{1,\}\(\[[^]]*][[:space:]]*\)\{0,1\}\([^[:space:]]*\).*/\2/p' \
            -e 's/^URIs:[[:space:]]*\([^[:space:]]*\).*/\1/p' "$file"
    done | grep -E '/debian/?$|/debian\.list$' | head -n 1
}

# download_consul FOLDER MIRROR OPTIONS: Debian's package into the folder, by apt, of which only that folder takes note.
download_consul() {
    mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
    printf 'deb [%s] %s bullseye main\n' "$3" "$2" >"$1/sources.list"
    cat >"$1/apt.conf" <<EOF
Dir::Etc::sourcelist "$1/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$1/lists";
Dir::Cache "$1/cache";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Languages "none";
Acquire::http::Timeout "20";
Acquire::Retries "1";
EOF
    (cd "$1" && APT_CONFIG=$1/apt.conf && export APT_CONFIG && apt-get -q update && apt-get -q download consul) >"$1/log" 2>&1
}

# fetch_consul: a Consul for the tests, into .tools; nothing is installed. Debian has it in bullseye (1.8.7), and no longer since.
fetch_consul() (
    if command -v consul >/dev/null || [ -x .tools/usr/bin/consul ]; then return 0; fi
    mirror=$(debian_mirror)
    if [ -z "$mirror" ] || ! command -v apt-get >/dev/null; then
        print_line 'Not fetched: consul, since no apt source of this machine is Debian. Its tests need one in PATH'
        return 0
    fi
    print_line 'Fetching consul into .tools'
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    options="arch=$(dpkg --print-architecture)"
    checked=$options
    [ ! -r "$keys" ] || checked="$options signed-by=$keys"
    if ! download_consul "$folder" "$mirror" "$checked" && grep -qE 'NO_PUBKEY|KEYEXPIRED|EXPKEYSIG|not signed' "$folder/log"; then
        print_line "The signature of Debian's bullseye cannot be checked with the keys of this machine; consul is taken unchecked, for the tests alone"
        download_consul "$folder" "$mirror" "$options trusted=yes" || :
    fi
    if dpkg -x "$folder"/consul_*.deb "$folder/files" 2>/dev/null; then
        mkdir -p .tools/usr/bin
        cp "$folder/files/usr/bin/consul" .tools/usr/bin/consul.new
        mv .tools/usr/bin/consul.new .tools/usr/bin/consul
    else
        print_line "Not fetched: consul; its tests need one in PATH. apt-get said: $(grep -E '^(E|Err)' "$folder/log" | tail -n 1)"
    fi
)

# fetch_py_consul: the maintained continuation of python-consul, beside it, for the tests that both do the same.
fetch_py_consul() {
    [ ! -d .tools/py-consul ] || return 0
    .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 10))' || return 0
    print_line 'Fetching py-consul into .tools'
    rm -rf .tools/py-consul.new
    if .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target .tools/py-consul.new py-consul; then
        mv .tools/py-consul.new .tools/py-consul
    else
        print_line 'Not fetched: py-consul; its tests are skipped'
    fi
}

# fetch_axe: axe-core and html-validate, which look at the page as a person with a screen reader and a browser do.
fetch_axe() {
    if [ -d .tools/node_modules/axe-core ] && [ -d .tools/node_modules/html-validate ]; then return 0; fi
    ! left_out npm || return 0
    print_line 'Fetching axe-core and html-validate into .tools'
    mkdir -p .tools
    npm install --silent --no-audit --no-fund --no-save --ignore-scripts --prefix .tools axe-core@4 html-validate@9 ||
        print_line 'Not fetched: axe-core and html-validate; their tests are skipped'
}

# fetch_packages: what pip would install on the machines of the tests, so that no test pays for it.
fetch_packages() {
    .venv/bin/python -c 'from tests.support.machine import packages; packages()' || print_line 'Not installed: the packages for the machines of the tests'
}

shell_files() {
    find install.sh install .ci/run scripts site_builder tests -type f '(' -name '*.sh' -o -name '*.cgi' -o -name '*.bash' -o -path .ci/run -o -path '*/stand-ins/*' ')' ! -name '*.txt'
}

# left_out TOOL: it is missing here, and what needs it is left out; in CI that is a failure.
left_out() {
    ! command -v "$1" >/dev/null || return 1
    [ -z "${CI:-}" ] || die "$1 is not installed, and in CI no check is left out"
    print_line "Left out: all that needs $1, which is not installed here"
}

check_code() {
    step 'Code: ruff, mypy, import-linter, shellcheck, shfmt'
    .venv/bin/ruff format --check --quiet .
    .venv/bin/ruff check --quiet .
    .venv/bin/mypy --no-error-summary
    .venv/bin/lint-imports >.venv/imports.log || { cat .venv/imports.log && return 1; }
    if ! left_out shellcheck; then
        # shellcheck disable=SC2046 # one word a file
        shellcheck -x $(shell_files)
        shellcheck -S warning -x tests/host/*.bats
    fi
    if ! left_out shfmt; then
        # shellcheck disable=SC2046
        shfmt -d -i 4 -ci $(shell_files) tests/host/*.bats
    fi
}

# by_sudo COMMAND...: run it as root, with what the tests need of our environment, and leave no files of root in the clone.
by_sudo() {
    $sudo env "PATH=$PATH" "CI=${CI:-}" ${GPUBOARD_TEST_SHELL:+"GPUBOARD_TEST_SHELL=$GPUBOARD_TEST_SHELL"} \
        PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=/tmp/gpuboard-hypothesis "$@"
}

# run_parts COMMAND: run it with the tests that need root and the others; an ordinary user runs it twice, the second time by sudo.
run_parts() {
    if [ "$(id -u)" = 0 ]; then
        "$1" all
        return
    fi
    code=0
    "$1" user || code=1
    if become_root; then
        "$1" root by_sudo || code=1
    else
        print_line 'Left out: all tests that need root, for want of sudo without a password'
    fi
    return "$code"
}

# run_bats WHO [by_sudo]: the tests of the host scripts under $shell, or only those with $tag. Most of them wait for something, so that six
# files at once are no burden for two cores; tests of a file follow each other, since it takes bats as long to start one apart as many take. The tests with the tag `shell` must call every function of the scripts.
run_bats() {
    case $1 in
        all) tags=$tag ;;
        user) tags=${tag:+$tag,}!root ;;
        root) tags=${tag:+$tag,}root ;;
    esac
    [ "$tags" != shell ] || export GPUBOARD_TEST_CALLS=yes
    bats_code=0
    GPUBOARD_TEST_SHELL=$shell ${2:-} bats --jobs 6 --no-parallelize-within-files --formatter tap ${tags:+--filter-tags "$tags"} tests/host >"$results" </dev/null || bats_code=1
    unset GPUBOARD_TEST_CALLS
    grep -E '^not ok|^#|# skip' "$results" || :
    print_line "$(grep -c '^ok' "$results") passed, $(grep -c '^not ok' "$results") failed"
    return "$bats_code"
}

# test_scripts_under SHELL [TAG]
test_scripts_under() {
    step "Host scripts under $1"
    shell=$1 tag=${2:-}
    run_parts run_bats || failed=1
}

# test_host_scripts WHICH: all under dash; under the other shells, what depends on the shell.
test_host_scripts() {
    ! left_out bats || return 0
    results=$(mktemp)
    failed=0
    if [ "$1" = quick ]; then
        test_scripts_under dash quick
    else
        test_scripts_under dash
        test_scripts_under bash shell
        test_scripts_under ash shell
    fi
    rm "$results"
    return "$failed"
}

# run_pytest WHO [by_sudo]: files side by side, in the order of tests/conftest.py.
run_pytest() {
    case $1 in
        all) chosen=$speed ;;
        user) chosen="not root${speed:+ and $speed}" ;;
        root) chosen="root${speed:+ and $speed}" ;;
    esac
    ${2:-} .venv/bin/python -m pytest --quiet -n "$workers" --dist loadfile --no-loadscope-reorder -m "$chosen"
}

# test_python WHICH
test_python() {
    step Python
    speed='' workers=3 # many of the slow tests wait for something
    [ "$1" != quick ] || { export HYPOTHESIS_PROFILE=quick && speed='not slow' && workers=2; }
    run_parts run_pytest
}

install_tools() {
    # shellcheck disable=SC2086 # one word a pair
    install_packages $TEST_TOOLS
    # alone, since not every Debian and Ubuntu has it
    command -v chromium-headless-shell >/dev/null || apt_install chromium-headless-shell 2>/dev/null || print_line 'Chromium itself will show the pages, which takes longer'
    make_venv dev
    fetch_consul
    fetch_py_consul
    fetch_axe
    fetch_packages
}

# start_part WHAT...: a part of this script in the background, with all that it prints in a file; a shell would let it ignore SIGINT.
start_part() {
    GPUBOARD_TEST_SIGNALS='' sh tests/run.sh "$@" >"$logs/$1" 2>&1 &
}

# finish_part WHAT: wait for it, and print what it printed.
finish_part() {
    wait "$2" || result=1
    cat "$logs/$1"
}

# run_all WHICH: the checks of the code and the host tests run beside the Python tests, and are printed after them.
run_all() {
    logs=$(mktemp -d)
    trap 'rm -rf "$logs"' EXIT
    result=0
    start_part checks
    checks=$!
    start_part host "$1"
    host=$!
    test_python "$1" || result=1
    finish_part checks "$checks"
    finish_part host "$host"
    return "$result"
}

# has_memory: whether this user may mount, and 6 GB are free.
has_memory() { unshare --mount true 2>/dev/null && awk '/^MemAvailable:/ { exit $2 < 6000000 }' /proc/meminfo; }

# run_in_memory WHICH: run everything with all that tests write in memory, where that can be had: they create and remove so many
# files that a disk is what they would wait for. The mount ends with the last process of the tests.
run_in_memory() {
    if ! has_memory; then
        run_all "$1"
        return
    fi
    memory=$(mktemp -d /tmp/t.XXXXXX) # short, since the path of a socket must be
    result=0
    # shellcheck disable=SC2016 # for the inner shell
    GPUBOARD_TEST_SIGNALS='' unshare --mount sh -c 'mount -t tmpfs -o mode=1777 tests "$1" && TMPDIR=$1 exec sh tests/run.sh parts "$2"' - "$memory" "$1" || result=1
    rmdir "$memory"
    return "$result"
}

case ${1:-full} in
    full | quick)
        install_tools
        run_in_memory "${1:-full}"
        ;;
    parts) run_all "${2:-full}" ;;
    python)
        install_tools
        test_python quick
        ;;
    checks) check_code ;;
    host) test_host_scripts "${2:-full}" ;;
    -h | --help) print_help tests/run.sh ;;
    *)
        print_help tests/run.sh >&2
        exit 2
        ;;
esac
