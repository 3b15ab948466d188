# A systemd of its own for trials: the first process of namespaces that end with it. It runs on a
# copy-on-write view of a directory, and starts only one script. Sourced by scripts that sourced
# ci/lib.sh; not run. Needs root and overlayfs.
# shellcheck shell=bash

# The process of the trial, and its control groups.
trial_process=
trial_groups=()

# Says why no systemd of its own can run here, and exits; or returns.
require_systemd() {
    [[ $EUID == 0 ]] || skip "only root can boot a systemd"
    [[ -c /dev/fuse ]] || skip "no /dev/fuse"
    grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || skip "no overlayfs"
    unshare --pid --mount --cgroup --fork true 2>/dev/null || skip "no namespaces here"
}

# run_in_systemd WORK SCRIPT: calls `SCRIPT --inside WORK` in new namespaces and control groups, and
# waits until the trial is over, up to SECONDS_OF_TRIAL [60]. That command calls make_view, prepares
# the view, and ends with boot_view. WORK/log gets the output of systemd, and WORK/said/said the
# output of the trial. The caller's trap at EXIT calls end_systemd.
run_in_systemd() {
    local work=$1 script=$2 group above tries=0
    # A control group of its own, in which the inner systemd makes its own.
    for above in /sys/fs/cgroup /sys/fs/cgroup/systemd; do
        [[ ! -e $above/cgroup.procs ]] || trial_groups+=("$above/rfs-trial-$$")
    done
    for group in "${trial_groups[@]}"; do
        mkdir "$group"
    done
    mkdir "$work/said"
    (
        for group in "${trial_groups[@]}"; do
            echo "$BASHPID" >"$group/cgroup.procs"
        done
        exec unshare --fork --pid --mount --cgroup --kill-child bash "$script" --inside "$work"
    ) >"$work/log" 2>&1 &
    trial_process=$!
    until [[ -e $work/said/over ]] || ! kill -0 "$trial_process" 2>/dev/null || ((++tries > ${SECONDS_OF_TRIAL:-60} * 10)); do
        sleep 0.1
    done
    end_systemd
}

# Ends the inner systemd, if it runs, with all its processes.
end_systemd() {
    local group tries
    # Without the shell's word on it.
    [[ -z $trial_process ]] || { kill -KILL "$trial_process" && wait "$trial_process"; } 2>/dev/null || true
    trial_process=
    for group in "${trial_groups[@]}"; do
        for tries in 1 2 3 4 5; do
            find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
            [[ -e $group ]] || break
            sleep 0.2
        done
    done
    trial_groups=()
}

# make_view WORK BASE: mounts a view of the directory BASE on WORK/view. Changes stay in memory.
make_view() {
    local work=$1 base=$2 view=$1/view device target
    mount --make-rprivate /
    mkdir "$view" "$work/layer"
    mount -t tmpfs tmpfs "$work/layer"
    mkdir "$work/layer/upper" "$work/layer/work"
    mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/layer/upper,workdir=$work/layer/work" "$view"
    mount -t proc proc "$view/proc"
    mount -t sysfs sysfs "$view/sys"
    if [[ $(stat --file-system --format %T /sys/fs/cgroup) == cgroup2fs ]]; then
        mount -t cgroup2 cgroup2 "$view/sys/fs/cgroup"
    else
        mount -t tmpfs tmpfs "$view/sys/fs/cgroup"
        mkdir "$view/sys/fs/cgroup/systemd"
        mount -t cgroup -o none,name=systemd cgroup "$view/sys/fs/cgroup/systemd"
    fi
    for target in run tmp dev; do
        mount -t tmpfs tmpfs "$view/$target"
    done
    mkdir "$view/dev/shm"
    for device in null zero full random urandom tty fuse; do
        touch "$view/dev/$device"
        mount --bind "/dev/$device" "$view/dev/$device"
    done
    # The script and its output.
    mkdir -p "$view/trial"
    mount --bind "$work/said" "$view/trial"
    mkdir -p "$view/run/systemd/system"
}

# boot_view WORK SCRIPT ARGUMENT: makes systemd the first process of the view. It runs a copy of
# SCRIPT of ci/product/ with the ARGUMENT, and nothing of a machine's own start.
boot_view() {
    local work=$1 view=$1/view loaded=$1/view/run/systemd/system target
    mkdir -p "$view/trial/ci/product"
    # shellcheck disable=SC2154  # the sourcing script sets root
    cp "$root/ci/lib.sh" "$view/trial/ci"
    cp "$root/ci/product/$2" "$root/ci/product/inner-systemd.sh" "$view/trial/ci/product"
    for target in sysinit basic shutdown umount network-online; do
        printf '%s\n' '[Unit]' DefaultDependencies=no >"$loaded/$target.target"
    done
    printf '%s\n' '[Unit]' DefaultDependencies=no Wants=trial.service >"$loaded/trial.target"
    printf '%s\n' '[Unit]' DefaultDependencies=no '[Service]' Type=oneshot \
        "ExecStart=/bin/bash /trial/ci/product/$2 $3" StandardOutput=file:/trial/said StandardError=inherit \
        'ExecStopPost=/bin/touch /trial/over' >"$loaded/trial.service"
    exec chroot "$view" env container=trial /lib/systemd/systemd --system --log-target=console --show-status=0 --unit=trial.target
}

# Until it holds, for 20 s.
becomes() {
    local tries=0
    until "$@"; do
        ((++tries < 200)) || { echo "never: $*" && return 1; }
        sleep 0.1
    done
}

main_pid() {
    systemctl show --property MainPID --value "$1"
}
