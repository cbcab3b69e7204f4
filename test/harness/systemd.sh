#!/bin/bash
# Boots a real system manager as PID 1 of namespaces of its own, on a throw-away copy-on-write view of this machine.
#
#   systemd.sh keep STATE    set up, boot, and keep: prints `pid N` as soon as PID 1 of the instance is there. Ends the
#                            instance when stdin ends (so also when the test that holds the other end of the pipe dies)
#                            and removes all that is left of it. Prints `killed` when it would not power off.
#
# STATE is a directory of the caller's own, made by him, removed here. In it lie, made by the caller:
#   project    text: absolute path of the built checkout
#   install/   what is copied over / of the instance before the boot
#   preset     text, may be absent: units that the preset of the package is applied to
#   enable     text, may be absent: units that are enabled besides
# Nothing of this touches the host but a cgroup and STATE: every mount lies in a namespace that dies with the instance.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

readonly SELF=$(readlink -f "${BASH_SOURCE[0]}")
readonly POWER_OFF_SECONDS=20

# Units of the distribution that reach out to the kernel, which is shared with the host, or to hardware that is not there.
readonly MASKED=(
  systemd-sysctl.service systemd-modules-load.service systemd-binfmt.service modprobe@.service kmod-static-nodes.service
  proc-sys-fs-binfmt_misc.automount proc-sys-fs-binfmt_misc.mount sys-kernel-debug.mount sys-kernel-tracing.mount
  sys-kernel-config.mount dev-hugepages.mount systemd-journald-audit.socket systemd-random-seed.service
  systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service
  systemd-pstore.service systemd-repart.service systemd-remount-fs.service systemd-firstboot.service
  systemd-machine-id-commit.service systemd-timesyncd.service systemd-networkd.service systemd-resolved.service
  systemd-update-utmp.service systemd-update-utmp-runlevel.service systemd-initctl.socket systemd-pcrphase.service
  systemd-pcrphase-sysinit.service getty.target console-getty.service systemd-ask-password-console.path
  systemd-ask-password-wall.path systemd-tmpfiles-clean.timer)
# What root inside must not be able to do to the kernel of the host.
readonly DROPPED=-sys_module,-sys_rawio,-sys_time,-syslog,-wake_alarm,-block_suspend,-mac_admin,-mac_override

fault() {
  echo "systemd harness: $*" >&2
  exit 1
}

# --- inside ------------------------------------------------------------------------------------------------------

make_devices() { # DIR
  local name major minor
  mount -t tmpfs -o mode=755,nosuid,size=4m test-dev "$1"
  while read -r name major minor; do mknod -m 666 "$1/$name" c "$major" "$minor"; done <<-END
	null 1 3
	zero 1 5
	full 1 7
	random 1 8
	urandom 1 9
	tty 5 0
	fuse 10 229
	END
  mkdir "$1/pts" "$1/shm" "$1/mqueue"
  mount -t devpts -o newinstance,nosuid,noexec,ptmxmode=0666,mode=620,gid=5 devpts "$1/pts"
  mount -t tmpfs -o mode=1777,nosuid,nodev test-shm "$1/shm"
  mount -t mqueue -o nosuid,nodev,noexec mqueue "$1/mqueue"
  ln -s pts/ptmx "$1/ptmx"
  ln -s /proc/self/fd "$1/fd"
  ln -s fd/0 "$1/stdin"
  ln -s fd/1 "$1/stdout"
  ln -s fd/2 "$1/stderr"
}

make_kernel_mounts() { # ROOT
  # proc is left whole: with parts of it covered nobody inside could mount a proc in a user namespace, as bubblewrap does.
  mount -t proc -o nosuid,nodev,noexec proc "$1/proc"
  mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$1/sys"
  mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$1/sys/fs/cgroup"
  mount -t fusectl -o nosuid,nodev,noexec fusectl "$1/sys/fs/fuse/connections"
}

configure() { # ROOT
  local unit id
  for unit in "${MASKED[@]}"; do ln -s /dev/null "$1/etc/systemd/system/$unit"; done
  # The rules of the distribution that empty /tmp have no business here, private as it is.
  mkdir -p "$1/etc/tmpfiles.d" "$1/etc/systemd/journald.conf.d" "$1/etc/systemd/system.conf.d"
  ln -sf /dev/null "$1/etc/tmpfiles.d/tmp.conf"
  ln -sf /dev/null "$1/etc/tmpfiles.d/x11.conf"
  rm -f "$1/etc/machine-id" "$1/etc/hostname" "$1/etc/fstab" "$1/.dockerenv"
  id=$(</proc/sys/kernel/random/uuid)
  echo "${id//-/}" >"$1/etc/machine-id"
  echo cortexfs-test >"$1/etc/hostname"
  printf '[Journal]\nAudit=no\nReadKMsg=no\nStorage=volatile\nRateLimitBurst=0\n' >"$1/etc/systemd/journald.conf.d/test.conf"
  printf '[Manager]\nDefaultTimeoutStopSec=15s\nDefaultTimeoutStartSec=30s\nCtrlAltDelBurstAction=none\n' \
    >"$1/etc/systemd/system.conf.d/test.conf"
}

# PID 1 of the new PID namespace; becomes the system manager.
enter() { # STATE
  local state=$1 root=$1/mem/root project pid place
  project=$(<"$state/project")
  mkdir "$state/mem"
  mount -t tmpfs -o mode=755,size=75% test "$state/mem"
  mkdir "$state/mem/upper" "$state/mem/work" "$root"
  # The lower layer is / without what is mounted below it; the upper one is memory, gone with the namespace.
  mount -t overlay test -o "lowerdir=/,upperdir=$state/mem/upper,workdir=$state/mem/work" "$root"
  mkdir -p "$root/mnt/project" "$root/mnt/before" "$root/var/lib/cortexfs" "$root/etc/systemd/system"
  mount --bind "$project" "$root/mnt/project"
  mount -o remount,bind,ro "$root/mnt/project"
  make_kernel_mounts "$root"
  make_devices "$root/dev"
  for place in run var/lib/cortexfs etc/systemd/system; do mount -t tmpfs -o mode=755,nosuid,nodev test "$root/$place"; done
  for place in tmp var/tmp; do mount -t tmpfs -o mode=1777,nosuid,nodev test "$root/$place"; done
  mkdir -m 1777 "$root/run/lock"
  configure "$root"
  cp -r --no-preserve=ownership "$state/install/." "$root/"
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin node /mnt/project/scripts/install.js /usr >&2
  chroot "$root" systemd-sysusers >&2
  for place in preset enable; do
    if [ -e "$state/$place" ]; then xargs -r chroot "$root" systemctl --quiet "$place" -- <"$state/$place" >&2; fi
  done

  read -r pid _ </proc/self/stat # still the proc of the host: its number for this process
  cd "$root"
  pivot_root . mnt/before
  echo "$pid" >"/mnt/before$state/pid.new"
  mv "/mnt/before$state/pid.new" "/mnt/before$state/pid"
  umount -l /mnt/before
  # Nothing that cleans up at boot may ever see a directory of the host.
  [ "$(stat -f -c %T /)" = overlayfs ] || fault "/ is not the overlay"
  for place in /tmp /var/tmp /run /dev /etc/systemd/system /var/lib/cortexfs; do
    [ "$(stat -f -c %T "$place")" = tmpfs ] || fault "$place is not private"
  done
  # As on a machine of its own: what one unit mounts is seen by units that have a mount namespace already.
  mount --make-rshared /
  exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin setpriv --bounding-set "$DROPPED" \
    /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=0
}

# --- outside -----------------------------------------------------------------------------------------------------

make_cgroup() { # NAME; prints its directory
  local base
  for base in /sys/fs/cgroup /sys/fs/cgroup/unified; do
    if [ "$(stat -f -c %T "$base" 2>/dev/null)" = cgroup2fs ]; then
      mkdir "$base/$1"
      echo "$base/$1"
      return
    fi
  done
  fault "no cgroup2 hierarchy is mounted"
}

has_ended() { # PID
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
  [[ ${stat##*) } == Z* ]]
}

wait_end() { # PID SECONDS
  local end=$((SECONDS + $2))
  until has_ended "$1"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.02
  done
}

# What instances left whose keepers were killed too.
sweep() { # STATE CGROUP
  local old pid
  for old in "${1%-*}"-*/keeper; do
    pid=$(cat "$old" 2>/dev/null) || continue
    [ -d "/proc/$pid" ] || rm -rf --one-file-system "${old%/keeper}"
  done
  for old in "${2%-*}"-*/; do
    pid=${old%/}
    [ -d "/proc/${pid##*-}" ] || find "$old" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
}

remove() { # STATE CGROUP
  local i
  if [ -w "$2/cgroup.kill" ]; then echo 1 >"$2/cgroup.kill"; fi
  for i in {1..100}; do
    find "$2" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [ -d "$2" ] || break
    sleep 0.05
  done
  rm -rf --one-file-system "$1"
}

keep() { # STATE
  local job pid
  state=$1 # not local: the trap runs when this function has returned
  cgroup=$(make_cgroup "cortexfs-test-$$")
  trap 'remove "$state" "$cgroup"' EXIT
  trap '' INT TERM HUP
  echo "$$" >"$state/keeper"
  sweep "$state" "$cgroup"
  # Should this process be killed, the kernel ends unshare, unshare PID 1, and PID 1 everything.
  setpriv --pdeathsig KILL unshare --pid --fork --kill-child=KILL -- "$SELF" namespaces "$state" "$cgroup" </dev/null &
  job=$!
  until [ -e "$state/pid" ]; do
    kill -0 "$job" 2>/dev/null || fault "set-up ended"
    sleep 0.01
  done
  pid=$(<"$state/pid")
  echo "pid $pid"
  cat >/dev/null
  if ! has_ended "$pid"; then
    # systemd's word for: power off. Said again, since a PID 1 that has just begun does not hear it.
    local i
    for ((i = 0; i < POWER_OFF_SECONDS; i++)); do
      kill -RTMIN+4 "$pid" 2>/dev/null || true
      ! wait_end "$pid" 1 || break
    done
    has_ended "$pid" || {
      echo killed
      kill -KILL "$pid"
      wait_end "$pid" 10 || true
    }
  fi
}

case ${1-} in
  keep) keep "$2" ;;
  namespaces)
    echo 0 >"$3/cgroup.procs"
    exec unshare --mount --uts --ipc --cgroup --net --propagation private -- "$SELF" enter "$2"
    ;;
  enter) enter "$2" ;;
  *) fault "usage: systemd.sh keep STATE" ;;
esac
