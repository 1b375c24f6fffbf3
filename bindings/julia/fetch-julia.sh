#!/bin/sh
# Unpacks a Julia beside the system, for tests only, and prints the path of a command that runs it.
#
#     sh bindings/julia/fetch-julia.sh [FOLDER]      (default: target/julia)
#
# It is Debian bullseye's Julia 1.5.3, from the mirror that apt on this machine is configured with,
# checked against Debian's keys as apt does; nothing is installed and no root is needed. About 50
# MiB. Exit status 3, with a line that says why, where that cannot be done: no apt, no such mirror,
# no network.
set -u
cd "$(dirname "$0")/../.."
folder=${1:-${CARGO_TARGET_DIR:-target}/julia}
mkdir -p "$folder" || exit 3
folder=$(cd "$folder" && pwd)
root=$folder/root
lib=$root/usr/lib/x86_64-linux-gnu
packages="julia libjulia1 julia-common libllvm9 libgit2-1.1 libmbedcrypto3 libmbedtls12 libmbedx509-0 libopenlibm3
    libdsfmt-19937-1 libutf8proc2 libffi7 libgfortran5 libunwind8"
# What Julia needs and most systems have: taken from the system, and from bullseye where it is not
# there. Not so libunwind: with a newer one than its own, this Julia crashes where an exception is
# thrown.
shared="libpcre2-8.so.0:libpcre2-8-0 libssh2.so.1:libssh2-1 libgmp.so.10:libgmp10
    libcurl-gnutls.so.4:libcurl3-gnutls libmpfr.so.6:libmpfr6"

give_up() {
    echo "no Julia: $*" >&2
    exit 3
}

# It starts, and throws and catches.
probe='f(x) = x > 0 ? throw(ArgumentError("")) : x; try f(1); exit(1) catch; end; exit(0)'
works() {
    [ -x "$folder/julia" ] && "$folder/julia" -e "$probe" >/dev/null 2>&1
}

works && { echo "$folder/julia"; exit 0; }

for tool in apt-get apt-cache dpkg ldconfig; do
    PATH=$PATH:/sbin:/usr/sbin command -v $tool >/dev/null 2>&1 || give_up "$tool is missing"
done
[ "$(dpkg --print-architecture)" = amd64 ] || give_up "only for amd64"
mirror=$(apt-get indextargets --format '$(ORIGIN) $(METAKEY) $(REPO_URI)' 2>/dev/null |
    sed -n 's|^Debian main/binary-amd64/Packages ||p' | head -n 1)
[ -n "$mirror" ] || give_up "apt knows no mirror of Debian (apt-get update may help)"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -f "$keys" ] || give_up "$keys is missing (apt install debian-archive-keyring)"

# A state of apt's own beside the system's, that has bullseye and nothing else.
mkdir -p "$folder/apt/lists/partial" "$folder/apt/cache/archives/partial" "$folder/debs"
echo "deb [signed-by=$keys] $mirror bullseye main" > "$folder/apt/sources.list"
: > "$folder/apt/status"
run_apt() {
    "$@" -o Dir::Etc::sourcelist="$folder/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$folder/apt/lists" -o Dir::State::status="$folder/apt/status" \
        -o Dir::Cache="$folder/apt/cache" -o APT::Sandbox::User= -o Acquire::Retries=2 -o Acquire::Languages=none \
        -o Acquire::Check-Valid-Until=false
}
apt_get() {
    run_apt apt-get -q "$@"
}
{ apt_get update; } >"$folder/log" 2>&1 || give_up "the mirror has no bullseye: $(tail -n 1 "$folder/log")"

wanted=$packages
for pair in $shared; do
    name=${pair%%:*}
    found=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n "s|^[[:space:]]*$name (libc6,x86-64.*) => ||p" | head -n 1)
    [ -n "$found" ] || wanted="$wanted ${pair#*:}"
done
(cd "$folder/debs" && apt_get download $wanted) >>"$folder/log" 2>&1 || give_up "$(tail -n 1 "$folder/log")"
rm -rf "$root"
for deb in "$folder"/debs/*.deb; do
    dpkg -x "$deb" "$root" >>"$folder/log" 2>&1 || give_up "$deb cannot be unpacked"
done
for pair in $shared; do
    name=${pair%%:*}
    found=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p | sed -n "s|^[[:space:]]*$name (libc6,x86-64.*) => ||p" | head -n 1)
    [ -z "$found" ] || [ -e "$lib/$name" ] || ln -s "$found" "$lib/$name"
done
cat > "$folder/julia" <<END
#!/bin/sh
export LD_LIBRARY_PATH='$lib:$lib/julia'\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}
exec '$root/usr/bin/julia' "\$@"
END
chmod +x "$folder/julia"
rm -rf "$folder/debs" "$folder/apt"
"$folder/julia" -e "$probe" >>"$folder/log" 2>&1 || give_up "it does not start: $(tail -n 1 "$folder/log")"
echo "$folder/julia"
