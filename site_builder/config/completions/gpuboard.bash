_gpuboard() {
    local line=${COMP_LINE:0:COMP_POINT} kind value
    # for readline a colon ends a word: only what follows it may be offered
    local typed=${line##*[[:space:]]}
    local head=${typed%"${typed##*:}"}
    [[ $COMP_WORDBREAKS == *:* ]] || head=
    COMPREPLY=()
    while IFS=$'\t' read -r kind value _; do
        case $kind in
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
            plain) COMPREPLY+=("${value#"$head"}") ;;
        esac
    done < <(_GPUBOARD_LINE=$line _GPUBOARD_COMPLETE=bash_complete "${1/#'~'/$HOME}" 2>/dev/null)
}
complete -o nosort -F _gpuboard gpuboard 2>/dev/null || complete -F _gpuboard gpuboard
