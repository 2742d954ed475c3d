# Functions of the scripts in this folder. POSIX sh, for a machine with python3 and nothing else.
# shellcheck shell=sh

set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
venv=$here/.venv
python=${PYTHON:-python3}
missing=''

say() { printf '%s\n' "$@" >&2; }

die() {
    say "$@"
    exit 1
}

# Runs a command whose output is of interest only when it fails.
quietly() {
    output=$("$@" 2>&1) && return
    printf '%s\n' "$output" | tail -n 20 >&2
    return 1
}

# wants PACKAGE COMMAND...: this Debian package counts as missing unless the command succeeds.
wants() {
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}

wants_python() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        die "affinityd needs Python 3.10 or newer as $python (PYTHON=... names another one)."
    wants "${python##*/}-venv" "$python" -c 'import ensurepip'
}

# As root, installs missing packages; as another user, prints the command.
install_missing() {
    [ -n "$missing" ] || return 0
    command -v apt-get >/dev/null || die "Please install what Debian calls$missing."
    [ "$(id -u)" -eq 0 ] || die "Something is missing here. As root, this installs it:" "" \
        "    apt-get install -y --no-install-recommends$missing" ""
    say "Installing$missing"
    quietly apt_install || die "apt-get could not install$missing."
}

# The package lists may be absent, as in an image, or too old: then they are fetched first.
apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086 # a word a package
    set -- apt-get -q -y -o DPkg::Lock::Timeout=120 install --no-install-recommends $missing
    "$@" || { apt-get -q update && "$@"; }
}

# environment EXTRA...: brings .venv up to date with this package and these extras of pyproject.toml.
environment() {
    made_for="$("$python" --version) in $here"
    if [ "$(cat "$venv/made-for" 2>/dev/null)" != "$made_for" ]; then
        say "Creating .venv"
        quietly "$python" -m venv --clear "$venv" || die "$python could not create $venv."
        printf '%s\n' "$made_for" >"$venv/made-for"
    fi
    has_extras "$@" || install_package "$@"
}

has_extras() {
    for extra; do
        cmp -s "$here/pyproject.toml" "$venv/has-$extra" || return 1
    done
}

install_package() {
    extras=$(IFS=, && printf '%s' "$*")
    say "Installing affinityd[$extras] into .venv"
    quietly "$venv/bin/python" -m pip install --disable-pip-version-check -e "${here}[$extras]" ||
        die "pip could not install affinityd[$extras]."
    for extra; do
        cp "$here/pyproject.toml" "$venv/has-$extra"
    done
}
