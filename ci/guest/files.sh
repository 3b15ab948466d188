# The parts of the guest of ci/rdma-vm: Debian's stock kernel, an initramfs, and the programs
# that this machine has not. Everything is fetched with apt and unpacked in the target directory;
# nothing of it is installed. Sourced, not run.
# shellcheck shell=bash disable=SC2154  # root, fail: of ci/rdma-vm

# Packages of the host.
guest_host_packages=(cpio kmod qemu-system-x86 util-linux xz-utils)
guest_cache=$(target_dir "$root")/rdma-vm
# Packages of the guest beside this machine's files and the kernel. Not installed here: some of
# these start daemons.
guest_packages=(busybox-static ibverbs-providers ibverbs-utils iproute2 jq kmod nbd-client nfs-common nfs-kernel-server perftest procps)
# Needed before this machine's files are there; later ones are loaded with modprobe.
early_modules=(virtio_pci 9pnet_virtio 9p overlay)

# Prints the package names, with versions, of the kernel and of all that the guest needs and this
# machine has not.
wanted_packages() {
    local image
    image=$(apt-cache depends --important linux-image-amd64 2>/dev/null | awk '$1 == "Depends:" && $2 ~ /^linux-image-/ { print $2; exit }')
    [[ -n $image ]] || return 1
    apt-cache policy "$image" | awk -v name="$image" '$1 == "Candidate:" && $2 != "(none)" { print name "=" $2 }'
    # Only new packages: this machine's own versions do for the rest.
    apt-get install -s -o Debug::NoLocking=1 --no-install-recommends "${guest_packages[@]}" 2>/dev/null |
        awk '$1 == "Inst" && $3 ~ /^\(/ { print $2 "=" substr($3, 2) }'
}

# Fetches and unpacks the packages into $guest_cache/files, of which the kernel and an initramfs are
# made. Made in a directory of its own and put in place at the end: an interrupted run leaves no
# half of it.
build_guest() {
    local new=$guest_cache/files.new debs=$guest_cache/debs package version name
    command -v apt-get >/dev/null || fail "no apt-get here: there is no other source for the guest's kernel"
    mapfile -t packages < <(wanted_packages)
    [[ ${packages[0]:-} == linux-image-* ]] ||
        fail "apt knows no kernel package (linux-image-amd64): are the package lists there? apt-get update fetches them"
    version=${packages[0]%%=*}
    version=${version#linux-image-}
    note "fetching ${packages[0]} and ${#packages[@]} packages in all"
    rm -rf "$new" "$debs"
    mkdir -p "$new"/usr/{bin,sbin,lib,lib64} "$debs"
    # As in Debian itself: the unpacked files must not hide this machine's links of these names.
    for name in bin sbin lib lib64; do
        ln -s "usr/$name" "$new/$name"
    done
    (cd "$debs" && apt-get -qq -o APT::Sandbox::User=root download "${packages[@]}") >"$guest_cache/log" 2>&1 ||
        { cat "$guest_cache/log" >&2 && fail "apt cannot fetch the guest's packages"; }
    for package in "$debs"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" |
            tar -x --keep-directory-symlink --no-same-owner -C "$new" \
                --exclude='./lib/modules/*/kernel/drivers/gpu' --exclude='./lib/modules/*/kernel/drivers/media' \
                --exclude='./lib/modules/*/kernel/sound' --exclude='./usr/share/doc' --exclude='./usr/share/man' ||
            fail "cannot unpack ${package##*/}"
    done
    # The packages' own are unpacked, and their files are not needed again.
    rm -rf "$debs"
    PATH=$PATH:/sbin:/usr/sbin depmod -b "$new" "$version" || fail "depmod failed"
    printf '%s\n' "$version" >"$new/kernel-version"
    build_initramfs "$new" "$version"
    rm -rf "$guest_cache/files"
    mv "$new" "$guest_cache/files"
    guest_key >"$guest_cache/key"
}

build_initramfs() {
    local files=$1 version=$2 tree=$1/initramfs module path order
    mkdir -p "$tree"/{bin,modules,dev,proc,sys}
    cp "$files/usr/bin/busybox" "$tree/bin/"
    cp "$root/ci/guest/init" "$tree/init"
    chmod 755 "$tree/init"
    order=$(PATH=$PATH:/sbin:/usr/sbin modprobe -d "$files" -S "$version" --show-depends --all "${early_modules[@]}") ||
        fail "this kernel has not all of the modules ${early_modules[*]}"
    # A module that several others need is named several times.
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }' <<<"$order" | while read -r path; do
        module=${path##*/}
        case $module in
            *.xz) xz -dc "$path" >"$tree/modules/${module%.xz}" ;;
            *.zst) zstd -qdc "$path" >"$tree/modules/${module%.zst}" ;;
            *) cp "$path" "$tree/modules/" ;;
        esac
        module=${module%%.ko*}
        printf '%s.ko\n' "$module" >>"$tree/modules/order"
    done
    (cd "$tree" && find . | cpio --quiet -o -H newc) | gzip -1 >"$files/initramfs.gz"
    rm -rf "$tree"
}

# Changes when the cache has to be made again: by another script, other modules or
# another system.
guest_key() {
    {
        cat "$root/ci/guest/files.sh" "$root/ci/guest/init"
        # A library of this machine that is replaced may not go with the guest's programs any more.
        dpkg-query -W 2>/dev/null
    } | sha256sum
}

# make_guest_files REFRESH: makes $guest_cache/files where it is missing or out of date; with
# REFRESH of the newest kernel.
make_guest_files() {
    local lock program
    for program in qemu-system-x86_64 cpio depmod modprobe setpriv; do
        command -v "$program" >/dev/null || [[ -x /sbin/$program ]] ||
            fail "no $program here: ci/setup installs ${guest_host_packages[*]}"
    done
    mkdir -p "$guest_cache"
    # Two runs at once: the second waits for the first, and then has nothing to do.
    exec {lock}>"$guest_cache/lock"
    flock "$lock"
    if [[ -n $1 || ! -e $guest_cache/files/initramfs.gz || $(cat "$guest_cache/key" 2>/dev/null) != "$(guest_key)" ]]; then
        [[ -n ${RFS_NO_INSTALL:-} ]] || apt_get update || fail "apt-get update failed"
        build_guest
    fi
    exec {lock}>&-
}
