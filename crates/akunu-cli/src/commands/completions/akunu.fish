# Completion of akunu's command line for fish.

function __akunu_complete
    set -l words (commandline --current-process --tokenize --cut-at-cursor)
    set -l current (commandline --current-token --cut-at-cursor)
    set -l program (string replace --regex '^~' $HOME -- $words[1])
    set -l lines ($program __complete --current="$current" -- $words[2..-1] 2>/dev/null)
    if test (count $lines) -gt 1
        printf '%s\n' $lines[2..-1]
    end
    if test "$lines[1]" = files
        set -l option (string match --regex '^--[^=]*=' -- "$current")
        set -l path (string replace --regex '^--[^=]*=' '' -- "$current")
        __fish_complete_path "$path" | string replace --regex -- '^' "$option"
    end
end

complete --command akunu --no-files --arguments '(__akunu_complete)'
