#compdef gpuboard
_gpuboard() {
    local line="${(j: :)words[1,CURRENT-1]} $PREFIX" kind value help
    local -a offered
    compset -P '--*='
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            dir) _path_files -/ ;;
            file) _path_files ;;
            plain) offered+=("${value//:/\\:}${help:+:$help}") ;;
        esac
    done < <(_GPUBOARD_LINE=$line _GPUBOARD_COMPLETE=zsh_complete ${~${(Q)words[1]}} 2>/dev/null)
    (( ! $#offered )) || _describe -V gpuboard offered
}
if [[ $funcstack[1] == _gpuboard ]]; then
    _gpuboard "$@"
else
    compdef _gpuboard gpuboard
fi
