#!/bin/sh
# Make the disk and the kernel of the virtual machine: tests/vm/image.sh FOLDER WHEELS
#
#   FOLDER   where root.ext4, vmlinuz and initrd.img go
#   WHEELS   folder with the wheels of what is installed by pip
#
# Needs root, mmdebstrap and mke2fs; a Debian mirror is reached through the network. Some minutes.
set -eu
out=$(cd "$1" && pwd)
wheels=$(cd "$2" && pwd)
suite=bookworm
root=$(mktemp -d "${TMPDIR:-/var/tmp}/watchdog-vm.XXXXXX")
trap 'rm -rf "$root"' EXIT INT TERM

say() { printf 'vm image: %s\n' "$*" >&2; }

packages=systemd-sysv,libpam-systemd,dbus-user-session,udev,kmod,procps,util-linux,zstd,strace
packages=$packages,python3,python3-venv,python3-distutils,linux-image-amd64,initramfs-tools
packages=$packages,systemd-oomd,earlyoom,nohang,dmsetup,e2fsprogs,polkitd

say "Debian $suite with its kernel, systemd, systemd-oomd, earlyoom and nohang (1 to 3 minutes)"
mmdebstrap --quiet --variant=minbase --include="$packages" \
    --aptopt='Apt::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --essential-hook='mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"' \
    --essential-hook='printf "MODULES=list\nCOMPRESS=zstd\n" >"$1/etc/initramfs-tools/conf.d/small"' \
    --essential-hook='printf "virtio_pci\nvirtio_blk\next4\n" >"$1/usr/share/initramfs-tools/modules.d/virtio"' \
    "$suite" "$root/tree" >"$out/image.log" 2>&1 || {
    tail -20 "$out/image.log" >&2
    say "mmdebstrap failed; all of its words are in $out/image.log"
    exit 1
}
tree=$root/tree

say "packages for Python"
cp -r "$wheels" "$tree/wheels"
chroot "$tree" python3 -m venv /opt/watchdog
# shellcheck disable=SC2016 # the inner shell expands it
chroot "$tree" sh -c 'PIP_CONFIG_FILE=/dev/null /opt/watchdog/bin/python -m pip install --quiet --disable-pip-version-check --no-index /wheels/*.whl' >>"$out/image.log" 2>&1 || {
    tail -20 "$out/image.log" >&2
    exit 1
}
rm -rf "$tree/wheels"

say "settings"
chroot "$tree" useradd --create-home --shell /bin/bash --uid 1000 me
chroot "$tree" useradd --create-home --shell /bin/bash --uid 1001 stranger
mkdir -p "$tree/var/lib/systemd/linger" "$tree/share"
touch "$tree/var/lib/systemd/linger/me" # their session's systemd runs from the start
ln -s /opt/watchdog/bin/watchdog "$tree/usr/local/bin/watchdog"
ln -s /opt/watchdog/bin/python "$tree/usr/local/bin/vm-python"
cat >"$tree/etc/systemd/system/guest.service" <<'UNIT'
[Unit]
Description=Runs what the host asks for
After=systemd-user-sessions.service
RequiresMountsFor=/share

[Service]
ExecStart=/usr/bin/python3 /share/guest_service.py
OOMScoreAdjust=-1000
OOMPolicy=continue
ManagedOOMPreference=omit
MemoryLow=64M
Delegate=yes
KillMode=control-group

[Install]
WantedBy=multi-user.target
UNIT
echo watchdog-vm >"$tree/etc/hostname"
echo '127.0.0.1 localhost watchdog-vm' >"$tree/etc/hosts"
printf '/dev/vda / ext4 noatime 0 0\nshare /share 9p trans=virtio,version=9p2000.L,msize=262144 0 0\n' >"$tree/etc/fstab"
# Empty: one of its own each boot. "uninitialized" would be a first boot, at which systemd switches on
# what Debian's presets say, the killers below among it.
: >"$tree/etc/machine-id"
chroot "$tree" systemctl --quiet enable guest.service
# What a test wants to meet it starts itself; the rest only takes time.
for unit in earlyoom.service nohang.service nohang-desktop.service systemd-oomd.service systemd-oomd.socket; do
    chroot "$tree" systemctl --quiet disable "$unit" >>"$out/image.log" 2>&1 || true
done
# Debian lets systemd-oomd judge the whole machine by its swap and each session by its pressure; that
# wish alone starts it, enabled or not, and it may end trainings, daemons and these tests.
for default in -.slice.d/10-oomd-root-slice-defaults.conf user@.service.d/10-oomd-user-service-defaults.conf; do
    mkdir -p "$tree/etc/systemd/system/${default%/*}"
    ln -s /dev/null "$tree/etc/systemd/system/$default"
done
for unit in apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer e2scrub_reap.service dpkg-db-backup.timer \
    fstrim.timer systemd-timesyncd.service getty@tty1.service systemd-pstore.service; do
    ln -sf /dev/null "$tree/etc/systemd/system/$unit"
done
rm -rf "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/*

cp "$tree"/boot/vmlinuz-* "$out/vmlinuz.new"
cp "$tree"/boot/initrd.img-* "$out/initrd.img.new"
rm -f "$tree"/boot/vmlinuz-* "$tree"/boot/initrd.img-*
say "disk"
rm -f "$out/root.ext4.new"
mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1 -d "$tree" "$out/root.ext4.new" 3G
chmod a+r "$out/vmlinuz.new" "$out/initrd.img.new" "$out/root.ext4.new"
mv "$out/vmlinuz.new" "$out/vmlinuz"
mv "$out/initrd.img.new" "$out/initrd.img"
mv "$out/root.ext4.new" "$out/root.ext4"
say "ready"
