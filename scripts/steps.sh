# shellcheck shell=bash
# Named steps that run once, for scripts/setup.sh to source.
#
# A step is done when its stamp holds its key, so a key must name everything that the step depends on.
# The caller has set this:
: "${root:?must be the repository}"
# And sets these:
step_stamps=   # goes away together with what the steps made
step_logs=     # one log per step
step_seconds=  # how long each step took last time, kept across all checkouts
step_count=0   # how many steps there are in all

step_number=0
heartbeat_pid=

# Prints the one line that says what is wrong and what to do about it, and ends everything.
fail() {
  printf 'setup: %s\n' "$1" >&2
  exit 1
}

# Prints a short hash of its arguments.
hash_of() {
  printf '%s\0' "$@" | sha256sum | cut -c 1-16
}

# Prints a short hash of the names and contents of files, given as paths in the repository.
hash_of_files() {
  local path
  (
    cd "$root"
    for path in "$@"; do
      [[ ! -e $path ]] || find "$path" -type f -print0
    done | LC_ALL=C sort -z | xargs -0 -r sha256sum | sha256sum | cut -c 1-16
  )
}

# Says whether a step is done: is_done NAME KEY
is_done() {
  [[ -f $step_stamps/$1 && $(<"$step_stamps/$1") == "$2" ]]
}

# Writes a file under its final name only once it is whole: write_file PATH TEXT
write_file() {
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "$2" >"$1.$$"
  mv -f "$1.$$" "$1"
}

# Shows that a long step is alive: on a terminal each second, in a log file each minute.
heartbeat() {
  local log=$1 start=$SECONDS progress silence pause=60 format='      ... %d s %s\n'
  [[ ! -t 1 ]] || { pause=1 && format='\r      ... %d s %s '; }
  # Waits by reading where nothing ever comes: a sleep would outlive this process and hold its output.
  exec {silence}<> <(:)
  while ! read -r -t "$pause" -u "$silence"; do
    progress=$(grep -o '\[[0-9]*/[0-9]*\]' "$log" 2>/dev/null | tail -n 1 || true)
    # shellcheck disable=SC2059
    printf "$format" $((SECONDS - start)) "$progress"
  done
}

# Takes the heartbeat away, and its line on a terminal.
stop_heartbeat() {
  [[ -n $heartbeat_pid ]] || return 0
  kill "$heartbeat_pid" 2>/dev/null || true
  wait "$heartbeat_pid" 2>/dev/null || true
  heartbeat_pid=
  [[ ! -t 1 ]] || printf '\r\033[K'
}
trap stop_heartbeat EXIT

# Runs a command unless its step is done: step NAME KEY DESCRIPTION COMMAND...
step() {
  local name=$1 key=$2 description=$3
  shift 3
  step_number=$((step_number + 1))
  local title="[$step_number/$step_count] $description"
  if is_done "$name" "$key"; then
    echo "$title: unchanged"
    return
  fi
  rm -f "$step_stamps/$name"
  local last_time=
  [[ ! -f $step_seconds/$name ]] || last_time=" (last time: $(<"$step_seconds/$name") s)"
  echo "$title$last_time"

  local log=$step_logs/$name.log start=$SECONDS status
  mkdir -p "$step_logs"
  heartbeat "$log" &
  heartbeat_pid=$!
  # Not in an `if`, and not with `||`: both switch off errexit inside.
  # Descriptor 9 is setup.sh's lock: nothing that a step leaves behind may keep it.
  set +e
  (set -e; "$@") >"$log" 2>&1 </dev/null 9<&-
  status=$?
  set -e
  stop_heartbeat
  if ((status != 0)); then
    # What went wrong first is rarely at the end.
    echo "      failed after $((SECONDS - start)) s; errors in its log, then its end:" >&2
    { grep -i -m 5 -E '(^|[^a-z_-])error:|^FAILED:' "$log" && echo "..." || true; } | sed 's/^/      | /' >&2
    tail -n 15 "$log" | sed 's/^/      | /' >&2
    fail "$description: failed. The whole log: $log"
  fi
  write_file "$step_stamps/$name" "$key"
  write_file "$step_seconds/$name" "$((SECONDS - start))"
  echo "      done in $((SECONDS - start)) s"
}
