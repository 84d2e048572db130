# shellcheck shell=sh disable=SC2034,SC2153,SC2154 # variables come from gpu-doctor.sh, and go to the checks
# What the checks of gpu-doctor.sh share: what they found, how it is told, and a time limit that not even a hung driver outlasts.

# pass WORDS: all is well. skip WHY: nobody can tell. apart WHY: the same where it does not apply, which is told only to whoever asks for all.
pass() { found pass "$1" ''; }
skip() { found skip "$1" ''; }
apart() { found skip "$1" '' apart; }

# warn WORDS ADVICE, fail WORDS ADVICE: what is wrong, and what to do.
warn() { found warn "$1" "$2"; }
fail() { found fail "$1" "$2"; }

# found STATUS WORDS ADVICE [apart]: notes it, or nobody may take this for an answer; words of other programs can hold anything, and stay one line.
found() {
    noted=yes
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$group" "$check" "$(one_line "$2")" "$(one_line "$3")" "${4:-}" >>"$work/found" ||
        die "what was found cannot be written to $work: is the disk full?"
}

one_line() {
    # of UTF-8, too, control characters begin with the byte 302
    case $1 in
        *[[:cntrl:]]* | *"$(printf '\302')"*) printf '%s' "$1" | tr '\001-\037\177' '[ *]' | cut -c 1-500 | awk '{gsub(/\302[\200-\237]/, " "); print}' ;;
        *) printf '%s' "$1" ;;
    esac
}

# asked COMMAND...: leaves its words in $out and $err, its exit code in rc, and in took how long it was at it (1/100 s). One that hangs in the
# kernel cannot be killed, and timeout would wait for it; so a second one ends the first.
out='' err='' rc='' took=''
asked() {
    out=$work/out err=$work/err rc=0
    read -r up_exact _ </proc/uptime
    began_cs=${up_exact%.*}${up_exact#*.}
    timeout -s KILL "$((GPUBOARD_LIMIT + 2))" timeout -k 1 "$GPUBOARD_LIMIT" "$@" >"$out" 2>"$err" </dev/null || rc=$?
    read -r up_exact _ </proc/uptime
    took=$((${up_exact%.*}${up_exact#*.} - began_cs))
}

# seconds CENTISECONDS: as people write them.
seconds() { printf '%s.%s s\n' "$(($1 / 100))" "$(($1 % 100 / 10))"; }

# timed_out: whether the last command was stopped at the limit.
timed_out() { [ "$rc" = 124 ] || [ "$rc" = 137 ]; }

# last_words: what the last command said, for a sentence.
last_words() { cat "$err" "$out" | awk 'NF {last = $0} END {print (last == "" ? "it says nothing" : substr(last, 1, 200))}'; }

# need_settings: a check that needs them ends where they cannot be read.
need_settings() { [ -z "$wrong" ] || { skip 'the settings cannot be read' && return 1; }; }

# look_at_all: each check, told as soon as it is done; ends by exit.
look_at_all() {
    : >"$work/found"
    [ -n "$as_json" ] || printf '%s\n' "$HOST (gpuboard $GPUBOARD_VERSION)"
    printf '%s\n' "$CHECKS" >"$work/checks"
    lines=0
    while read -r group checks; do
        [ -n "$group" ] || continue
        group=${group%:}
        [ -n "$as_json" ] || printf '\n%s\n' "$group"
        for check in $checks; do
            noted=
            "see_$(printf '%s\n' "$check" | tr - _)" <&3 || :
            [ -n "$noted" ] || skip 'nothing was found out'
            [ -n "$as_json" ] || tell_found
        done
    done 3</dev/null <"$work/checks"
    worst=$(awk -F '\t' '$1 == "fail" || $1 == "warn" && worst != "fail" {worst = $1} END {print worst ? worst : "pass"}' "$work/found")
    if [ -n "$as_json" ]; then
        awk -v host="$HOST" -v version="$GPUBOARD_VERSION" -v worst="$worst" -f "$LIB/doctor.awk" "$work/found"
    else
        awk -F '\t' '{n[$1]++} END {printf "\n%d pass, %d warn, %d fail, %d skip\n", n["pass"], n["warn"], n["fail"], n["skip"]}' "$work/found"
    fi
    case $worst in pass) exit 0 ;; warn) exit 1 ;; *) exit 2 ;; esac
}

# tell_found: what the check has just found; what is well keeps to its line.
tell_found() {
    columns=${COLUMNS:-80}
    case $columns in '' | *[!0-9]* | ?????* | [0-9] | [0-3][0-9]) columns=80 ;; esac
    tail -n "+$((lines + 1))" "$work/found" | awk -F '\t' -v verbose="$verbose" -v columns="$columns" '
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
    lines=$(grep -c '' "$work/found" || :)
}
