#compdef akunu
# Completion of akunu's command line for zsh.

_akunu() {
    local -a lines candidates
    local line word
    lines=("${(@f)$("${(Q)words[1]/#\~/$HOME}" __complete --current="${(Q)PREFIX}" -- \
        "${(@Q)words[2,CURRENT - 1]}" 2>/dev/null)}")
    for line in "${(@)lines[2,-1]}"; do
        word=${line%%$'\t'*}
        candidates+=("${word//:/\\:}:${line#*$'\t'}")
    done
    if (( $#candidates )); then
        _describe 'akunu' candidates
    fi
    if [[ $lines[1] == files ]]; then
        compset -P '--*='
        _files
    fi
}

# Loaded by its name from $fpath, or read by `source`.
if [[ $funcstack[1] == _akunu ]]; then
    _akunu "$@"
else
    compdef _akunu akunu
fi
