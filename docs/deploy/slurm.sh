#!/bin/bash
# Runs a command of ralm on a Ray cluster of the machines of this job, and ends the cluster with it:
#
#     sbatch slurm.sh eval /shared/text.txt --index /shared/my-index --lm gpt2 --lm-args ray=auto --out /shared/my-run
#
# The folders must be on a disk that all machines share. If the job is killed, submit it again: what was done is kept.
#SBATCH --job-name=ralm
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --exclusive
#SBATCH --time=12:00:00
# A machine that fails ends neither the job nor the work of the others.
#SBATCH --no-kill
#SBATCH --requeue
set -euo pipefail

# Load modules or an environment here, the same for all machines:
# source /shared/ralm/bin/activate

: "${1:?give a command of ralm, such as: eval /shared/text.txt --index /shared/my-index --lm gpt2 --lm-args ray=auto --out /shared/my-run}"
port=${RAY_PORT:-6379} # another one for each job if jobs share machines
export RAY_USAGE_STATS_ENABLED=0
# Whoever reaches the port of a cluster can run code as you. So Ray asks for a token that only this job has.
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${machines[0]} # where this script runs

# srun does not take --cpus-per-task from sbatch. A step for each machine, so that a lost one ends no other.
start_on() {
  local machine=$1
  shift
  exec srun --nodes=1 --ntasks=1 --nodelist="$machine" --cpus-per-task="$SLURM_CPUS_PER_TASK" \
    ray start --num-cpus="$SLURM_CPUS_PER_TASK" --block "$@"
}

# However this ends, the cluster ends too; the status is that of the command.
trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT

start_on "$head" --head --port="$port" --include-dashboard=false &
ray_head=$!
until (: <"/dev/tcp/$head/$port") 2>/dev/null; do
  kill -0 "$ray_head" 2>/dev/null || { echo "Ray did not start on $head." >&2; exit 1; }
  sleep 1
done
for machine in "${machines[@]:1}"; do
  start_on "$machine" --address="$head:$port" &
done

RAY_ADDRESS="$head:$port" ralm "$@"
