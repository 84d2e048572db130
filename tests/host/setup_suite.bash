# What is done once for all host tests: the scripts are put under the shell to test, and at the end nothing of the tests may run any more.
#
# With GPUBOARD_TEST_CALLS set, the tests must call every function of the scripts at least once. So a choice of tests (--filter-tags shell)
# is enough to show that the scripts work under another shell.

CALLS=$BATS_RUN_TMPDIR/calls

setup_suite() {
    local name=${GPUBOARD_TEST_SHELL:-dash} program folder=$BATS_SUITE_TMPDIR
    case $name in
        ash) program=$(command -v busybox) ;;
        *) program=$(command -v "$name") ;;
    esac
    mkdir "$folder/shell"
    ln -s "$program" "$folder/shell/sh" # by the name of sh: bash is then in POSIX mode, busybox is ash
    cp -R "$BATS_TEST_DIRNAME/../../scripts" "$folder/scripts"
    find "$folder/scripts" -name '*.sh' -exec sed -i "1s|^#!/bin/sh|#!$folder/shell/sh|" {} +
    [ -z "${GPUBOARD_TEST_CALLS:-}" ] || record_calls "$folder/scripts"
}

# list_calls FOLDER: the functions of the scripts there, and the scripts themselves.
list_calls() { (cd "$1" && find . -name '*.sh' -printf '%f\n' && grep -rhoE --include='*.sh' '^[a-z_]+\(\)' . | tr -d '()') | LC_ALL=C sort -u; }

# record_calls FOLDER: lets each script, and each function, leave a file of its name in CALLS.
record_calls() {
    local file
    mkdir -m 1777 "$CALLS"
    chmod a+x "$BATS_RUN_TMPDIR"
    find "$1" -name '*.sh' | while read -r file; do
        sed -i -e "0,/^[^#]/s|^[^#].*|{ echo >>$CALLS/${file##*/}; } 2>/dev/null \|\| :\n&|" \
            -e "s|^\([a-z_]*\)() [{(]|& { echo >>$CALLS/\1; } 2>/dev/null \|\| :;|M" "$file"
    done
}

# print_left_processes: what runs of any test: it has a folder of one in its environment, its command line or its open files.
print_left_processes() {
    {
        find /proc/[0-9]*/fd '(' -lname "$BATS_RUN_TMPDIR/test/*" -o -lname "$BATS_RUN_TMPDIR/file/*" ')'
        grep -lsF -e "$BATS_RUN_TMPDIR/test/" -e "$BATS_RUN_TMPDIR/file/" /proc/[0-9]*/cmdline /proc/[0-9]*/environ
    } 2>/dev/null | cut -d/ -f3 | sort -un | while read -r pid; do
        command=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") || true
        [ -z "$command" ] || echo "$pid $command"
    done
}

teardown_suite() {
    local left end=$((SECONDS + 20))
    while left=$(print_left_processes) && [ -n "$left" ] && [ "$SECONDS" -lt "$end" ]; do sleep 0.2; done
    if [ -n "$left" ]; then
        printf 'still running after the tests:\n%s\n' "$left"
        cut -d' ' -f1 <<<"$left" | xargs kill -9
        return 1
    fi
    if [ -n "${GPUBOARD_TEST_CALLS:-}" ] && [ ! -e "$BATS_RUN_TMPDIR/skipped" ]; then
        left=$(LC_ALL=C comm -23 <(list_calls "$BATS_SUITE_TMPDIR/scripts") <(ls "$CALLS"))
        if [ -n "$left" ]; then
            printf 'never called under this shell:\n%s\n' "$left"
            return 1
        fi
    fi
}
