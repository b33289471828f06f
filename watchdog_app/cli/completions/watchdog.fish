function __watchdog_words
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -g __watchdog_found (watchdog completion words $before[2..-1] "$current" 2>/dev/null)
    test -n "$__watchdog_found"
end
complete -c watchdog -f -n __watchdog_words -a '$__watchdog_found'
