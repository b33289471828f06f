_watchdog() {
  local word help
  COMPREPLY=()
  while IFS=$'\t' read -r word help; do
    COMPREPLY+=("$word")
  done < <(watchdog completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _watchdog watchdog
