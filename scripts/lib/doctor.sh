# shellcheck shell=sh disable=SC2034,SC2153,SC2154 # variables come from gpu-doctor.sh, and go to the checks
# What the checks of gpu-doctor.sh share: results, their output, and a time limit that holds even for a hung driver.

# report_pass MESSAGE: all is well.
report_pass() { add_result pass "$1" ''; }

# report_skip WHY: the check could not be made.
report_skip() { add_result skip "$1" ''; }

# report_not_applicable WHY: the check does not apply; shown with --verbose only.
report_not_applicable() { add_result skip "$1" '' hidden; }

# report_warning MESSAGE ADVICE: something is wrong, but the host is on the board.
report_warning() { add_result warn "$1" "$2"; }

# report_failure MESSAGE ADVICE: something keeps the host off the board.
report_failure() { add_result fail "$1" "$2"; }

# add_result STATUS MESSAGE ADVICE [hidden]: store a result, or die. The output of other programs may hold anything, and is put on one line.
add_result() {
    has_result=yes
    [ "$1" != fail ] || failed_checks="$failed_checks $check"
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$group" "$check" "$(flatten_text "$2")" "$(flatten_text "$3")" "${4:-}" >>"$work/results" ||
        die "results cannot be written to $work: is the disk full?"
}

# flatten_text TEXT: print it on one line, without control characters.
flatten_text() {
    # in UTF-8 there are control characters that begin with the byte 302
    case $1 in
        *[[:cntrl:]]* | *"$(printf '\302')"*) printf '%s' "$1" | tr '\001-\037\177' '[ *]' | cut -c 1-500 | awk '{gsub(/\302[\200-\237]/, " "); print}' ;;
        *) printf '%s' "$1" ;;
    esac
}

out='' err='' rc='' took='' failed_checks=''

# run_with_timeout COMMAND...: run it, with its output in $out and $err, its exit code in rc, and its duration in took (1/100 s). A process that hangs
# in the kernel cannot be killed, and timeout would wait for it; so a second timeout ends the first.
run_with_timeout() {
    out=$work/out err=$work/err rc=0
    read -r up_exact _ </proc/uptime
    began_cs=${up_exact%.*}${up_exact#*.}
    timeout -s KILL "$((GPUBOARD_LIMIT + 2))" timeout -k 1 "$GPUBOARD_LIMIT" "$@" >"$out" 2>"$err" </dev/null || rc=$?
    read -r up_exact _ </proc/uptime
    took=$((${up_exact%.*}${up_exact#*.} - began_cs))
}

# format_seconds CENTISECONDS: print them as seconds.
format_seconds() { printf '%s.%s s\n' "$(($1 / 100))" "$(($1 % 100 / 10))"; }

# is_timed_out: whether the last command was stopped at the time limit.
is_timed_out() { [ "$rc" = 124 ] || [ "$rc" = 137 ]; }

# print_last_line: print the last line of the last command, for a sentence.
print_last_line() { cat "$err" "$out" | awk 'NF {last = $0} END {print (last == "" ? "it says nothing" : substr(last, 1, 200))}'; }

# require_checks CHECK...: skip the check if one that it depends on has failed.
require_checks() {
    for cause in "$@"; do
        case "$failed_checks " in *" $cause "*) report_skip "not checked: see the check $cause" && return 1 ;; esac
    done
}

# require_settings: skip the check if the settings cannot be read.
require_settings() { require_checks settings; }

# run_checks: run each check, and print its result at once; ends by exit.
run_checks() {
    : >"$work/results"
    [ -n "$as_json" ] || printf '%s\n' "$HOST (gpuboard $GPUBOARD_VERSION)"
    printf '%s\n' "$CHECKS" >"$work/checks"
    printed_results=0
    while read -r group checks; do
        [ -n "$group" ] || continue
        group=${group%:}
        [ -n "$as_json" ] || printf '\n%s\n' "$group"
        for check in $checks; do
            has_result=
            "inspect_$(printf '%s\n' "$check" | tr - _)" <&3 || :
            [ -n "$has_result" ] || report_skip 'no result'
            [ -n "$as_json" ] || print_result
        done
    done 3</dev/null <"$work/checks"
    worst=$(awk -F '\t' '$1 == "fail" || $1 == "warn" && worst != "fail" {worst = $1} END {print worst ? worst : "pass"}' "$work/results")
    if [ -n "$as_json" ]; then
        awk -v host="$HOST" -v version="$GPUBOARD_VERSION" -v worst="$worst" -f "$LIB/doctor_json.awk" "$work/results"
    else
        awk -F '\t' '{n[$1]++} END {printf "\n%d pass, %d warn, %d fail, %d skip\n", n["pass"], n["warn"], n["fail"], n["skip"]}' "$work/results"
    fi
    case $worst in pass) exit 0 ;; warn) exit 1 ;; *) exit 2 ;; esac
}

# print_result: print the result of the last check; one that passed keeps to one line.
print_result() {
    columns=${COLUMNS:-80}
    case $columns in '' | *[!0-9]* | ?????* | [0-9] | [0-3][0-9]) columns=80 ;; esac
    tail -n "+$((printed_results + 1))" "$work/results" | awk -F '\t' -v verbose="$verbose" -v columns="$columns" '
        function fold(line, text,    n, word, i) {
            n = split(text, word, " ")
            for (i = 1; i <= n; i++) {
                if (length(line) > 22 && length(line) + length(word[i]) > columns - 1) { print line; line = sprintf("%22s", "") }
                line = line (length(line) > 22 ? " " : "") word[i]
            }
            print line
        }
        $6 == "" || verbose {
            first = sprintf("  %-4s  %-12s  ", $1, $3)
            if (length($4) + 22 < columns || verbose || $1 != "pass") fold(first, $4)
            else print first substr($4, 1, columns - 26) "..."
            if ($5 != "") fold(sprintf("%19s", "") "-> ", $5)
        }'
    printed_results=$(grep -c '' "$work/results" || :)
}
