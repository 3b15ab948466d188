# Shared by the scripts that run in the guest of ci/rdma-vm; sourced, not run.
# shellcheck shell=bash

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

[[ -n ${RDMA_VM:-} ]] || die "only in the guest of ci/rdma-vm"

# A pipe that both ends of are open, to wait for nothing without a process.
exec {never}<> <(:)

# wait_listening PID PORT: waits until a process in the network namespace of PID listens at a TCP
# port. Fails if PID ends. Starts no processes, because starting a process is slow here.
wait_listening() {
    local hex table
    printf -v hex ':%04X ' "$2"
    while [[ -e /proc/$1/net/tcp ]]; do
        for table in tcp tcp6; do
            [[ $(<"/proc/$1/net/$table") != *"$hex"*([0-9A-F]):0000\ 0A\ * ]] || return 0
        done 2>/dev/null
        read -rt 0.05 -u "$never" || true
    done
    return 1
}
