#!/bin/sh
# Checks the systemd units as they would be installed, in a root of their own: nothing on this machine is touched.
set -eu
here=$(dirname "$0")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
units="$root/etc/systemd/system"
mkdir -p "$units" "$root/opt/partition-planner/.venv/bin" "$root/usr/lib/systemd/system"
cp "$here"/*.service "$units"
for program in planner-server stage-daemon; do
    printf '#!/bin/sh\n' > "$root/opt/partition-planner/.venv/bin/$program"
    chmod +x "$root/opt/partition-planner/.venv/bin/$program"
done
# What every installation has.
for unit in basic.target sysinit.target shutdown.target network-online.target multi-user.target; do
    printf '[Unit]\nDescription=%s\n' "$unit" > "$root/usr/lib/systemd/system/$unit"
done
for unit in planner-server.service stage-daemon@0.service; do
    found=$(systemd-analyze verify --man=no --root="$root" "$unit" 2>&1) || { echo "$found"; exit 1; }
    # A misspelt directive is only warned about.
    [ -z "$found" ] || { echo "$found"; exit 1; }
    echo "$unit: fine"
done
