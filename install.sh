#!/bin/sh
# Installs akunu from a release: downloads the archive for this system, compares its SHA-256, and copies the program,
# manual pages and completions into a folder. `sh install.sh --help` lists the options.
set -eu

RELEASES=https://github.com/akunu-project/akunu/releases

usage() {
    cat <<'END'
sh install.sh [OPTIONS]
  --version V   a version, such as 0.1.0 [default: the latest release]
  --prefix DIR  where bin and share are [default: $PREFIX, else ~/.local]
  --from URL    a folder with SHA256SUMS and archives, instead of the project's releases
  --dry-run     say what would be done, and download only the list of checksums
  --uninstall   remove what this script has installed under the prefix
END
}

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

say() { printf '%s\n' "$1"; }

have() { command -v "$1" >/dev/null 2>&1; }

# Downloads $1 to the file $2.
fetch() {
    if have curl; then
        curl --fail --silent --show-error --location "$1" --output "$2"
    elif [ "${1#file://}" != "$1" ]; then
        cp "${1#file://}" "$2"
    elif have wget; then
        wget --quiet --output-document="$2" "$1"
    else
        fail 'curl or wget is needed'
    fi
}

sha256() {
    if have sha256sum; then
        sha256sum "$1" | cut -d ' ' -f 1
    elif have shasum; then
        shasum -a 256 "$1" | cut -d ' ' -f 1
    elif have openssl; then
        openssl dgst -sha256 -r "$1" | cut -d ' ' -f 1
    else
        fail 'sha256sum, shasum or openssl is needed to verify the download'
    fi
}

# The name of this system in the names of archives.
target() {
    system=$(uname -s) machine=$(uname -m)
    case $machine in
        x86_64 | amd64) machine=x86_64 ;;
        aarch64 | arm64) machine=aarch64 ;;
    esac
    case $system-$machine in
        Linux-x86_64 | Linux-aarch64) say "$machine-unknown-linux-gnu" ;;
        Darwin-x86_64 | Darwin-aarch64) say "$machine-apple-darwin" ;;
        *) fail "there are no archives for $system on $machine; docs/install.md says how to build from source" ;;
    esac
}

# Removes what the list of an earlier installation names, unless it is in the file $1.
remove_installed() {
    while IFS= read -r file; do
        case $file in
            '' | /* | *..*) fail "$list is damaged: it names $file" ;;
        esac
        if ! grep -Fqx "$file" "$1"; then
            rm -f "$prefix/$file"
            folder=$(dirname "$file")
            while [ "$folder" != . ] && rmdir "$prefix/$folder" 2>/dev/null; do
                folder=$(dirname "$folder")
            done
        fi
    done <"$list"
}

uninstall() {
    [ -f "$list" ] || fail "nothing was installed under $prefix by this script ($list is missing)"
    if $dry_run; then
        say "would remove:"
        sed "s|^|  $prefix/|" "$list"
        return
    fi
    cp "$list" "$temporary/list"
    list=$temporary/list
    remove_installed /dev/null
    say "removed akunu from $prefix; downloaded models stay in the Hugging Face cache"
}

# Copies the folder $1 into the prefix. `set -e` has no effect where the caller tests the outcome.
install_files() {
    cd "$1" || return
    find . \( -type f -o -type l \) | sed 's|^\./||' | sort >"$temporary/files" || return
    if [ -f "$list" ]; then
        remove_installed "$temporary/files"
    fi
    mkdir -p "$(dirname "$list")" || return
    # First, so that an installation that was broken off can be removed too.
    { cat "$temporary/files" && say share/akunu/installed; } >"$list" || return
    while IFS= read -r file; do
        mkdir -p "$(dirname "$prefix/$file")" || return
        # A running program is replaced, not written to.
        cp -P "$file" "$prefix/$file.new" && mv -f "$prefix/$file.new" "$prefix/$file" || return
    done <"$temporary/files"
}

main() {
    version='' prefix=${PREFIX:-} from='' dry_run=false remove=false
    while [ $# -gt 0 ]; do
        case $1 in
            --version | --prefix | --from)
                [ $# -ge 2 ] || fail "$1 needs a value"
                case $1 in
                    --version) version=${2#v} ;;
                    --prefix) prefix=$2 ;;
                    --from) from=${2%/} ;;
                esac
                shift
                ;;
            --dry-run) dry_run=true ;;
            --uninstall) remove=true ;;
            --help | -h)
                usage
                exit 0
                ;;
            *)
                usage >&2
                fail "unknown option $1"
                ;;
        esac
        shift
    done
    if [ -z "$prefix" ]; then
        [ -n "${HOME:-}" ] || fail 'HOME is not set: use --prefix DIR'
        prefix=$HOME/.local
    fi
    case $prefix in
        /*) ;;
        *) prefix=$PWD/$prefix ;;
    esac
    list=$prefix/share/akunu/installed
    temporary=$(mktemp -d)
    trap 'rm -rf "$temporary"' EXIT
    trap 'exit 130' INT TERM

    if $remove; then
        uninstall
        exit 0
    fi

    target=$(target)
    if [ -n "$from" ]; then
        base=$from
    elif [ -n "$version" ]; then
        base=$RELEASES/download/v$version
    else
        base=$RELEASES/latest/download
    fi
    fetch "$base/SHA256SUMS" "$temporary/SHA256SUMS" ||
        fail "there is no release at $base (SHA256SUMS cannot be fetched)"
    # Lines are `HASH  NAME`.
    line=$(grep -E "^[0-9a-f]{64}  akunu-${version:-[0-9][0-9A-Za-z.-]*}-$target\.tar\.gz\$" "$temporary/SHA256SUMS") ||
        fail "the release at $base has no archive${version:+ of version $version} for $target"
    [ "$(printf '%s\n' "$line" | wc -l)" -eq 1 ] || fail "the release at $base has several versions: use --version"
    expected=${line%% *} archive=${line##* }

    if $dry_run; then
        say "would download $base/$archive (SHA-256 $expected)"
        say "and install it under $prefix"
        exit 0
    fi
    mkdir -p "$prefix" 2>/dev/null || true
    [ -w "$prefix" ] || fail "$prefix cannot be written to: use --prefix DIR with a folder of yours"
    fetch "$base/$archive" "$temporary/$archive" || fail "$base/$archive cannot be fetched"
    found=$(sha256 "$temporary/$archive")
    [ "$found" = "$expected" ] ||
        fail "$archive has SHA-256 $found, and the release says $expected: nothing was installed"
    tar -xzf "$temporary/$archive" -C "$temporary" || fail "$archive cannot be unpacked"
    unpacked=$temporary/${archive%.tar.gz}
    "$unpacked/bin/akunu" --version >/dev/null ||
        fail "the program does not run on this system (Linux: it needs glibc 2.28 or newer): nothing was installed"
    (install_files "$unpacked") || fail "not everything could be written to $prefix; --uninstall removes what was"

    say "$("$prefix/bin/akunu" --version) is installed: $prefix/bin/akunu"
    case :${PATH:-}: in
        *":$prefix/bin:"*) ;;
        *) say "$prefix/bin is not in PATH: export PATH=\"$prefix/bin:\$PATH\"" ;;
    esac
    say "zsh completes after: fpath=(\"$prefix/share/zsh/site-functions\" \$fpath)"
}

# At the end, so that a script that arrived in part does nothing.
main "$@"
