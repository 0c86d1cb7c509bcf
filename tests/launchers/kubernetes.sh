# shellcheck shell=bash
# For a launcher's shell on emulated hosts: what the MPI operator gives a launcher pod.
# Hosts are seen by the service's names as well, /etc/hosts being one file for all of them.
mkdir -p /tmp/mpi
for number in 0 1; do
  name=digits-worker-$number.digits.default.svc
  read -r address _ < <(getent hosts "digits-worker-$number")
  echo "$address $name" >>/etc/hosts
  echo "$name slots=2" >>/tmp/mpi/hostfile
done
export K_MPI_JOB_ROLE=launcher
export OMPI_MCA_orte_keep_fqdn_hostnames=true
export OMPI_MCA_orte_default_hostfile=/tmp/mpi/hostfile   # /etc/mpi/hostfile in a pod
export OMPI_MCA_orte_set_default_slots=2
export OMPI_MCA_plm_rsh_args='-o ConnectionAttempts=10'
