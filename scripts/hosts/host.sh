#!/usr/bin/env bash
# The first process of an emulated host, in namespaces of its own. It ends with its standard input, and the kernel
# then ends every other process of the host:  host.sh NAME ADDRESS FOLDER [PATH in /tmp or /run that stays visible]...
set -euo pipefail
name=$1 address=$2 folder=$3
shift 3

hostname "$name"
mount --no-mtab --make-rprivate /
mount --no-mtab -t proc proc /proc
# Files of its own in memory, so that nothing is left on disk; what is to stay visible is mounted into them.
for place in /tmp /run /dev/shm; do
  mount --no-mtab -t tmpfs -o mode=1777 hosts /mnt
  for path in "$folder" "$@"; do
    case $path in "$place"/*)
      mkdir -p "/mnt${path#"$place"}"
      mount --no-mtab --rbind "$path" "/mnt${path#"$place"}" ;;
    esac
  done
  mount --no-mtab --move /mnt "$place"
done
for file in passwd shadow hosts resolv.conf; do
  [[ -e /etc/$file ]] && mount --no-mtab --bind "$folder/$file" "/etc/$file"
done
mkdir -p /run/sshd /run/home/.ssh
cp "$folder"/ssh/* /run/home/.ssh/
cp "$folder/host_key" /run/
chmod 700 /run/home /run/home/.ssh
chmod 600 /run/home/.ssh/* /run/host_key

ip link set lo up
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip address add "$address/24" dev eth0
ip link set eth0 up
# It leaves for the background before it listens, and writes the file when it does.
/usr/sbin/sshd -f "$folder/sshd_config"
until [[ -s /run/sshd.pid ]]; do sleep 0.02; done
touch /run/ready
# Bash also waits for orphans. Nobody writes: this returns when the other end of the pipe is closed.
read -r _ || true
