# Add new Xid errors of the kernel log to the known ones. Input with stage=known: what this printed the last time; with stage=log: what dmesg or
# `journalctl -o short-unix` prints, then `# end` if it succeeded. Output: `# READER BOOT NOW POSITION`, and `xid=FIRST LAST COUNT BUS CODE TEXT` for
# each error: one of the same code and GPU that comes again within ten minutes is the same, for up to a day. Variables: reader, boot, now, up.

# add_xid: add an error, or count the last of its kind once more.
function add_xid(time, bus, code, text,    i) {
    i = latest[bus, code]
    if (i != "" && time - last[i] < 600 && first[i] - time < 600 && time - first[i] < 86400) {
        times[i]++
        if (time > last[i]) last[i] = time
        if (text != "") what[i] = text
    } else store_xid(time, time, 1, bus " " code, text)
}

function store_xid(began, ended, number, place, text,    f) {
    first[++count] = began
    last[count] = ended
    times[count] = number
    where[count] = place
    what[count] = text
    split(place, f, " ")
    latest[f[1], f[2]] = count
}

# limit_time: return a time that is not in the future: of an error that was logged before the clock was set back, nobody knows how long ago it was.
function limit_time(time) { return time + 0 > now + 0 ? now + 0 : time + 0 }

# clean_xid_text: return the driver's words without the process, since events name nobody; who uses a GPU is in ps.txt.
function clean_xid_text(text) {
    gsub(/(pid|name)=[^,]*/, "", text)
    gsub(/[^ -~]/, "?", text)
    while (sub(/^[, ]+/, "", text) || sub(/[, ]+$/, "", text) || sub(/, *,/, ",", text));
    return substr(text, 1, 200)
}

# parse_xid: add the error of a line, from `NVRM: Xid (` on: (PCI:0000:41:00): 79, or older (0000:41:00): 79, or with an instance (PCI:0000:41:00 GPU-I:05): 31.
function parse_xid(time, line,    bus, code, end) {
    end = index(line, "): ")
    bus = substr(line, 12, end - 12)
    sub(/^PCI:/, "", bus)
    sub(/ .*/, "", bus)
    line = substr(line, end + 3)
    if (!end || length(bus) > 20 || bus !~ /^[0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+(\.[0-9A-Fa-f]+)?$/ || !match(line, /^[0-9]+/) || RLENGTH > 5) return
    code = substr(line, 1, RLENGTH) + 0
    add_xid(limit_time(time), bus, code, clean_xid_text(substr(line, RLENGTH + 1)))
}

# parse_log_seconds: return the seconds since boot at which a line of the ring buffer was logged.
function parse_log_seconds(line) {
    sub(/^\[ */, "", line)
    sub(/\].*/, "", line)
    return line + 0
}

# parse_ring_buffer: add the errors of its lines. A host that slept has more seconds than its log, so no error is older than the last look. A container
# may have an uptime of its own, and less of it than the log of its host: then the last line says how late it is.
function parse_ring_buffer(    i, seconds, time, log_end) {
    log_end = parse_log_seconds(last_line)
    if (log_end > up + 60) up = log_end
    for (i = 1; i <= xid_line_count; i++) {
        seconds = parse_log_seconds(xid_lines[i])
        if (position != "" && seconds <= position + 0) continue
        if (new_position == "" || seconds > new_position + 0) new_position = sprintf("%.6f", seconds)
        time = int(now - up + seconds)
        parse_xid(position != "" && time < read_at + 0 ? read_at + 0 : time, substr(xid_lines[i], index(xid_lines[i], "NVRM: Xid (")))
    }
}

BEGIN { CONVFMT = OFMT = "%.0f" } # mawk takes times after 2038 for fractions

stage == "known" && FNR == 1 {
    is_known = $2 == reader
    position = is_known && (reader != "dmesg" || $3 == boot) ? $5 : ""
    read_at = $4
    next
}
stage == "known" && is_known && /^xid=/ {
    text = $0
    sub(/^[^ ]+ [^ ]+ [^ ]+ [^ ]+ [^ ]+ ?/, "", text)
    store_xid(limit_time(substr($1, 5)), limit_time($2), $3 + 0, $4 " " $5, text)
}
stage == "known" { next }

$0 == "# end" || $0 == "-- No entries --" { is_complete = 1 } # journalctl may fail to show a cursor where there is no entry
/^-- cursor: / { new_position = $3 }
# a kernel may be set up to log without times (printk.time=0); then nobody knows what is new
reader == "dmesg" && !has_times && $0 != "# end" { has_no_times = !(has_times = /^\[ *[0-9]+\.[0-9]+\]/) }
reader == "dmesg" && /^\[/ { last_line = $0 }
!index($0, "NVRM: Xid (") { next }

reader == "dmesg" && /^\[ *[0-9]+\.[0-9]+\]( ?\[ *[CT][0-9]+\])? NVRM: Xid \(/ { xid_lines[++xid_line_count] = $0 } # some kernels name the thread after the time
reader == "journalctl" && /^[0-9]+\.[0-9]+ [^ ]+ kernel: NVRM: Xid \(/ { parse_xid(int($1), substr($0, index($0, "NVRM: Xid ("))) }

END {
    if (!is_complete || has_no_times) exit 1
    parse_ring_buffer()
    if (new_position == "") new_position = position != "" ? position : reader == "dmesg" ? 0 : ""
    print "# " reader " " boot " " now " " new_position
    for (i = 1; i <= count; i++) if (now - last[i] <= 604800) { kept[i] = 1; kept_count++ }
    for (; kept_count > 50; kept_count--) {
        oldest = 0
        for (i in kept) if (!oldest || last[i] < last[oldest] || last[i] == last[oldest] && i + 0 < oldest + 0) oldest = i
        delete kept[oldest]
    }
    for (i = 1; i <= count; i++) if (i in kept) print "xid=" first[i] " " last[i] " " times[i] " " where[i] (what[i] == "" ? "" : " " what[i])
}
