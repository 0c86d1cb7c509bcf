#!/usr/bin/env bash
# Starts Slurm on emulated hosts, from the first of them:  slurm.sh NAME:SLOTS,NAME:SLOTS
# All daemons run as root, with files in /tmp/slurm of each host; clients need SLURM_CONF=/tmp/slurm/slurm.conf.
set -euo pipefail

folder=/tmp/slurm
mkdir -p $folder
head -c 128 /dev/urandom >$folder/munge.key
chmod 400 $folder/munge.key
mapfile -d , -t hosts < <(printf %s "$1")
{
  cat <<CONF
ClusterName=emulated
SlurmctldHost=${hosts[0]%:*}
SlurmUser=root
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
AccountingStorageType=accounting_storage/none
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
  for host in "${hosts[@]}"; do
    echo "NodeName=${host%:*} CPUs=${host#*:}"
  done
} >$folder/slurm.conf

start="chmod 700 $folder && mkdir -p /run/munge $folder/state $folder/spool &&
  munged --force --key-file $folder/munge.key --log-file $folder/munged.log --pid-file $folder/munged.pid \
    --seed-file $folder/munged.seed"
bash -c "$start"
for host in "${hosts[@]:1}"; do
  # For this shell to expand.
  # shellcheck disable=SC2029
  tar -C $folder -c munge.key slurm.conf | ssh "${host%:*}" "mkdir -p $folder && tar -C $folder -x && $start"
done
slurmctld -f $folder/slurm.conf
for host in "${hosts[@]}"; do
  ssh "${host%:*}" slurmd -f $folder/slurm.conf
done
export SLURM_CONF=$folder/slurm.conf
for _ in {1..60}; do
  [[ $(sinfo --noheader --format %T) == idle ]] && exit
  sleep 0.5
done
sinfo
tail $folder/*.log
exit 1
