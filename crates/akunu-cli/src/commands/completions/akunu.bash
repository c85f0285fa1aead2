# Completion of akunu's command line for bash.

_akunu() {
    # bash splits words at ":" and "=" too: the words of the line are put together again, up to the cursor.
    local line=${COMP_LINE:0:COMP_POINT} words=() index word
    for ((index = 0; index <= COMP_CWORD; index++)); do
        word=${COMP_WORDS[index]}
        if ((index == 0)) || [[ $line == [[:blank:]]* ]]; then
            line=${line#"${line%%[![:blank:]]*}"}
            words+=("")
        fi
        ((index < COMP_CWORD)) || word=$line
        line=${line#"$word"}
        words[${#words[@]} - 1]+=$word
    done
    local last=$((${#words[@]} - 1))
    local current=${words[last]}

    local answer candidate
    answer=$("${1/#\~/$HOME}" __complete --current="$current" -- "${words[@]:1:last - 1}" 2>/dev/null) || return
    # What stands before the word that bash replaces.
    local kept=${current%"$2"}
    COMPREPLY=()
    while IFS=$'\t' read -r candidate _; do
        COMPREPLY+=("${candidate#"$kept"}")
    done < <(tail -n +2 <<<"$answer")
    # With no candidates, bash itself lists files.
    if [[ ${answer%%$'\n'*} == files ]]; then
        if ((${#COMPREPLY[@]} > 0)); then
            local path=$current
            [[ $current == -*=* ]] && path=$2
            while IFS= read -r candidate; do COMPREPLY+=("${candidate#"$kept"}"); done < <(compgen -f -- "$path")
        fi
    else
        compopt +o default 2>/dev/null
    fi
}

complete -o default -F _akunu akunu
