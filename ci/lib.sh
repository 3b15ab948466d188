# Shared by the scripts of this tree; sourced, not run.
# shellcheck shell=bash

note() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
}

# Status of a step that the machine cannot run: ci/test counts it as not run.
# shellcheck disable=SC2034  # used by the scripts that read this
not_run_status=77

die() {
    note "$*"
    exit 1
}

# Ends a step that this machine cannot run, with the reason.
skip() {
    echo "not run: $*"
    exit "$not_run_status"
}

# Prints the script's first comment as its help and exits, if the argument is -h or --help. The
# script has changed to another directory, so it is found by its name, which no other script of ci/
# and its folders has.
help_if_asked() {
    [[ $1 == -h || $1 == --help ]] || return 0
    local script
    # shellcheck disable=SC2154  # the sourcing script sets root
    for script in "$root/ci/${0##*/}" "$root"/ci/*/"${0##*/}"; do
        [[ ! -f $script ]] || break
    done
    sed -n '2,/^[^#]/{/^# shellcheck/d;/^[^#]/d;s/^# \{0,1\}//p}' "$script"
    exit
}

# Runs a command as root. Prints the command if root is not available.
as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        note "not root and no sudo: cannot run '$*'"
        return 1
    fi
}

# Returns success if a Debian package is installed.
installed() {
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]
}

apt_get() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 "$@"
}

# Installs the packages of the list that are missing.
install_packages() {
    local missing=() package
    for package in "$@"; do
        installed "$package" || missing+=("$package")
    done
    [[ ${#missing[@]} == 0 ]] && return 0
    command -v apt-get >/dev/null || die "no apt-get: install ${missing[*]} by hand"
    note "installing ${missing[*]}"
    { apt_get update && apt_get install -y --no-install-recommends "${missing[@]}" >/dev/null; } ||
        die "cannot install ${missing[*]}"
}

# Installs packages without starting their services: /usr/sbin/policy-rc.d refuses the start.
install_without_starting() {
    local policy=/usr/sbin/policy-rc.d status=0
    if [[ -e $policy ]]; then
        install_packages "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null || return
    as_root chmod 755 "$policy"
    (install_packages "$@") || status=$?
    as_root rm -f "$policy"
    return "$status"
}

# Packages for a build with RDMA. The bindings to libibverbs are generated from its C headers. CMake
# is not needed: see .cargo/config.toml.
# shellcheck disable=SC2034  # used by the scripts that read this
rdma_build_packages=(libclang-dev libibverbs-dev)

# The mirror of the distribution, as this machine's apt is configured: the first URI that serves the
# suite.
apt_mirror() {
    local suite=$1 files=()
    shopt -s nullglob
    # The debian.sources of an installer, other stanzas, then one-line sources.
    files=(/etc/apt/sources.list.d/*.sources)
    if [[ ${#files[@]} -gt 0 ]]; then
        # Stanzas: remember the URI of each, print it if its suites name ours.
        awk -v suite="$suite" '
            function flush(    i, n, words) {
                n = split(suites, words, " ")
                for (i = 1; i <= n; i++) if (words[i] == suite && uri != "") { print uri; exit }
                uri = ""; suites = ""
            }
            /^[[:space:]]*$/ { flush() }
            FNR == 1 { flush() }
            tolower($1) == "uris:" { uri = $2 }
            tolower($1) == "suites:" { $1 = ""; suites = $0 }
            END { flush() }
        ' "${files[@]}" | head -n 1
    fi
    files=(/etc/apt/sources.list.d/*.list)
    [[ ! -e /etc/apt/sources.list ]] || files+=(/etc/apt/sources.list)
    if [[ ${#files[@]} -gt 0 ]]; then
        awk -v suite="$suite" '
            $1 == "deb" {
                sub(/\[[^]]*\]/, "")
                if ($3 == suite) { print $2; exit }
            }
        ' "${files[@]}"
    fi
    shopt -u nullglob
}

# IOzone is in Debian's non-free section: adds a source of that section beside the existing ones.
install_iozone() {
    local suite mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    local list=/etc/apt/sources.list.d/rfs-non-free.sources
    command -v apt-get >/dev/null || return 1
    apt_get update || return 1
    if ! apt-cache show iozone3 >/dev/null 2>&1; then
        # shellcheck source=/dev/null
        suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
        mirror=$(apt_mirror "$suite" | head -n 1)
        if [[ -z $suite || -z $mirror || ! -e $keyring ]]; then
            note "no Debian mirror for '${suite:-this release}' in apt's sources"
            return 1
        fi
        note "adding the non-free section of $mirror as $list"
        printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: non-free\nSigned-By: %s\n' \
            "$mirror" "$suite" "$keyring" | as_root tee "$list" >/dev/null || return 1
        apt_get update || return 1
    fi
    note "installing iozone3"
    apt_get install -y --no-install-recommends iozone3 >/dev/null || return 1
    command -v iozone >/dev/null
}

# Looks for cargo, and sets the commit that --version of the programs prints. All scripts set it, so
# that no script links the programs again.
require_cargo() {
    local environment=${CARGO_HOME:-$HOME/.cargo}/env
    if ! command -v cargo >/dev/null && [[ -r $environment ]]; then
        # shellcheck source=/dev/null
        source "$environment"
    fi
    local needed version
    # shellcheck disable=SC2154  # the sourcing script sets root
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    command -v cargo >/dev/null || die "no cargo: install a Rust toolchain ($needed or later) first, with rustup for example"
    version=$(cargo --version) && version=${version#cargo } && version=${version%% *}
    [[ $(printf '%s\n' "$needed" "$version" | sort -V | head -n 1) == "$needed" ]] ||
        die "cargo $version is too old, $needed or later is needed: install a newer Rust toolchain, with rustup for example"
    if RFS_COMMIT=$(git -C "$root" describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null); then
        export RFS_COMMIT
    else
        unset RFS_COMMIT
    fi
}

# Prints the packages of build_release, as options of cargo.
release_packages() {
    printf -- '-p %s\n' rfs-server rfs-fuse iozone reliability rfs-preload rfs-c rfs-paging rfs-paging-preload packaging jakiro nessie rstore
}

# Builds the programs of the tests in release mode. All scripts use one selection of packages,
# because Cargo builds a crate once more for a selection that gives it other features. rdmabox-bench
# is built by itself: its rdmabox has other features than the rdmabox of the programs that `mount`
# and iozone/run build. So is rfs-python, because maturin builds it by itself.
build_release() {
    local packages
    read -rd "" -a packages < <(release_packages) || true
    # shellcheck disable=SC2154  # the sourcing script sets root
    (cd "$root" && cargo build --release --locked --quiet "${packages[@]}")
}

# build_programs PROFILE PACKAGE...: builds packages of build_release, in release mode as it does.
build_programs() {
    local profile=$1 package packages=()
    shift
    if [[ $profile == release ]]; then
        build_release
        return
    fi
    for package; do
        packages+=(-p "$package")
    done
    # shellcheck disable=SC2154  # the sourcing script sets root
    (cd "$root" && cargo build --profile "$profile" --locked --quiet "${packages[@]}")
}

# Prints the version of the programs.
workspace_version() {
    # shellcheck disable=SC2154  # the sourcing script sets root
    sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml"
}

# Prints the directory of cargo's output for this tree.
target_dir() {
    local dir=${CARGO_TARGET_DIR:-target}
    case $dir in
        /*) printf '%s\n' "$dir" ;;
        *) printf '%s/%s\n' "$1" "$dir" ;;
    esac
}

# Returns success if a child runs. A zombie counts as ended.
alive() {
    [[ -n $1 && -e /proc/$1/stat ]] && ! grep -qs '^State:[[:space:]]*Z' "/proc/$1/status"
}

# Waits up to 20 s for a condition while a child lives.
wait_for() {
    local pid=$1 name=$2 tries
    shift 2
    for ((tries = 0; tries < 400; tries++)); do
        "$@" && return 0
        alive "$pid" || die "$name ended before it was ready"
        sleep 0.05
    done
    die "$name was not ready after 20 s"
}

# start_local_server PROGRAM MEMORY DIR: starts a server at DIR/socket and at a TCP port, without
# keys. Sets server to its process and tcp_address to HOST:PORT. Its output is in DIR/server.log.
start_local_server() {
    "$1" --memory "$2" --listen "$3/socket" --listen tcp:127.0.0.1:0 --allow-without-keys \
        >"$3/server.log" 2>&1 </dev/null &
    server=$!
    wait_for "$server" rfs-server grep -qs '^ready:' "$3/server.log"
    # shellcheck disable=SC2034  # for the caller
    tcp_address=$(sed -n 's/^listening on tcp://p' "$3/server.log" | head -n 1)
}

# Prints the path of a tool that ci/setup builds: its own copy, or one in PATH, or only its name.
tool_path() {
    local own
    own=$(target_dir "$1")/tools/bin/$2
    if [[ -x $own ]]; then
        printf '%s\n' "$own"
    else
        command -v "$2" || printf '%s\n' "$2"
    fi
}
