# Completion of watchdog for bash; made by: watchdog completion bash
_watchdog() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command=${COMP_WORDS[1]} options="" rest="" value=""
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "status explain history checkpoint pause resume start stop reload run config demo record replay completion help --help --version" -- "$current")
    return
  fi
  case $command in
    help) rest="status explain history checkpoint pause resume start stop reload run config demo record replay completion" ;;
    status) options="-h --help --json -w --watch --check -a --all --sort -i --interval -n --count --color"; rest="" ;;
    explain) options="-h --help --json --color"; rest="@tasks" ;;
    history) options="-h --help --since --until --task --kind --limit --json --color"; rest="" ;;
    checkpoint) options="-h --help --all --wait --timeout --json"; rest="@tasks" ;;
    pause) options="-h --help --json"; rest="@tasks" ;;
    resume) options="-h --help --all --json"; rest="@tasks" ;;
    start) options="-h --help"; rest="" ;;
    stop) options="-h --help"; rest="" ;;
    reload) options="-h --help"; rest="" ;;
    run) options="-h --help --config -v --verbose"; rest="" ;;
    config) options="-h --help --json --path --check --default --color"; rest="" ;;
    demo) options="-h --help --json --keep --directory"; rest="" ;;
    record) options="-h --help -o --output --for --hz --force"; rest="@tasks" ;;
    replay) options="-h --help --jsonl --task --since --until --signal --limit --alarm-stage --caution --set --config --save-time --step-time --no-agent --daemon-pace --plot --json"; rest="@files" ;;
    completion) options="-h --help"; rest="bash zsh fish" ;;
  esac
  case $command:$previous in
    status:--sort) rest="urgency ram swap gpu cpu trend eta name pid"; value=1 ;;
    status:-i|status:--interval) rest=""; value=1 ;;
    status:-n|status:--count) rest=""; value=1 ;;
    status:--color) rest="auto always never"; value=1 ;;
    explain:--color) rest="auto always never"; value=1 ;;
    history:--since) rest=""; value=1 ;;
    history:--until) rest=""; value=1 ;;
    history:--task) rest="@tasks"; value=1 ;;
    history:--kind) rest="incident decision outcome death daemon"; value=1 ;;
    history:--limit) rest=""; value=1 ;;
    history:--color) rest="auto always never"; value=1 ;;
    checkpoint:--timeout) rest=""; value=1 ;;
    run:--config) rest="@files"; value=1 ;;
    config:--check) rest="@files"; value=1 ;;
    config:--color) rest="auto always never"; value=1 ;;
    demo:--directory) rest="@files"; value=1 ;;
    record:-o|record:--output) rest="@files"; value=1 ;;
    record:--for) rest=""; value=1 ;;
    record:--hz) rest=""; value=1 ;;
    replay:--jsonl) rest="@files"; value=1 ;;
    replay:--task) rest="@tasks"; value=1 ;;
    replay:--since) rest=""; value=1 ;;
    replay:--until) rest=""; value=1 ;;
    replay:--signal) rest=""; value=1 ;;
    replay:--limit) rest=""; value=1 ;;
    replay:--alarm-stage) rest="warn rescue"; value=1 ;;
    replay:--caution) rest="low normal high"; value=1 ;;
    replay:--set) rest=""; value=1 ;;
    replay:--config) rest="@files"; value=1 ;;
    replay:--save-time) rest=""; value=1 ;;
    replay:--step-time) rest=""; value=1 ;;
    replay:--plot) rest="@files"; value=1 ;;
  esac
  if [[ -z $value && $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ $rest == @tasks ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(watchdog completion tasks 2>/dev/null)" -- "$current")
  elif [[ $rest == @files ]]; then
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
    compopt -o filenames 2>/dev/null
  elif [[ -n $rest ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$rest" -- "$current")
  fi
}
complete -F _watchdog watchdog
