# Process 1 of a machine's namespaces: creates the machine's tree, and becomes systemd in it.
# $1: the scratch directory; $2: the machine's name; $3: its address; $4: the host's address in its network; $5: the
# process whose network namespace is the network's switch; $6: the layers of its root directory, the upper ones first.
# The rest: triples of permissions, source and target; `program`, `tree` and `link` are special values for permissions.
scratch=$1 name=$2 address=$3 host=$4 switch=/proc/$5/ns/net layers=$6
shift 6
# /proc still belongs to the host, so the PID is the PID on the host.
read -r pid rest </proc/self/stat

echo "$name" >/proc/sys/kernel/hostname
ip link set lo up
# Creates a veth pair to the switch. The kernel removes the pair when one end is removed. kubeadm and the kubelet need a
# default route, even though the host does not forward their traffic.
port=m${address##*.}
ip link add node type veth peer name "$port" netns "$switch"
nsenter --net="$switch" ip link set "$port" master switch up
ip address add "$address/24" dev node
ip link set node up
ip route add default via "$host"
echo 1 >/proc/sys/net/ipv4/ip_forward

mount -t tmpfs -o mode=755 machine "$scratch/root"
cd "$scratch/root"
mkdir upper work tree
mount -t overlay -o lowerdir="$layers",upperdir=upper,workdir=work machine tree
cd tree

# Remove all services of the host, and all files that belong to a node.
for own in etc/cni etc/default etc/kubernetes etc/systemd opt/cni var/lib/kubelet \
    usr/lib/systemd/system-generators usr/lib/systemd/system-environment-generators \
    usr/local/lib/systemd; do
  rm -rf "$own"
  mkdir -p "$own"
done
rm -rf var/lib/kubelet-authenticator etc/resolv.conf
touch etc/resolv.conf
mkdir etc/kubernetes/manifests
echo "$name" >etc/hostname
printf '127.0.0.1 localhost\n%s %s\n' "$address" "$name" >etc/hosts
tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
printf '[Journal]\nReadKMsg=no\nAudit=no\n' >etc/systemd/journald.conf
# Enable the kubelet's unit, as `systemctl enable kubelet` does.
mkdir -p etc/systemd/system/multi-user.target.wants
ln -s /usr/lib/systemd/system/kubelet.service etc/systemd/system/multi-user.target.wants/

# Keeps drop-ins for the kubelet's unit that come from the image.
if [ "$layers" != / ] && [ -d usr/lib/systemd/system/kubelet.service.d ]; then
  cp -n usr/lib/systemd/system/kubelet.service.d/* "$scratch/units/kubelet.service.d"
fi
mount --bind "$scratch/units" usr/lib/systemd/system
mount -t tmpfs -o mode=755 log var/log
mount -t tmpfs -o mode=1777 tmp tmp
mount -t tmpfs -o mode=755 run run
mkdir -p run/machine run/log/journal run/sysctl
mount --bind "$scratch/host" run/machine
mount --bind "$scratch/journal" run/log/journal

mount -t tmpfs -o mode=755 dev dev
for device in null:3 zero:5 full:7 random:8 urandom:9; do
  mknod -m 666 "dev/${device%:*}" c 1 "${device#*:}"
done
mknod -m 666 dev/tty c 5 0
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
# Use a regular file. systemd writes to it until the journal runs, and the kernel log belongs to the host.
touch dev/kmsg
mount --bind "$scratch/kmsg" dev/kmsg

mount -t sysfs sysfs sys
if [ -e /sys/fs/cgroup/cgroup.procs ]; then
  # The machine has only cgroup version 2, as with `tests/suites --cgroup2`.
  mount -t cgroup2 cgroup sys/fs/cgroup
else
  mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
  for hierarchy in /sys/fs/cgroup/*/cgroup.procs; do
    hierarchy=${hierarchy%/*}
    [ ! -L "$hierarchy" ] || continue
    hierarchy=${hierarchy##*/}
    case $hierarchy in
      unified) type=cgroup2 options=rw ;;
      systemd) type=cgroup options=none,name=systemd ;;
      *) type=cgroup options=$hierarchy ;;
    esac
    mkdir "sys/fs/cgroup/$hierarchy"
    mount -t "$type" -o "$options" cgroup "sys/fs/cgroup/$hierarchy"
  done
fi

mount -t proc proc proc
# systemd (fs/) and the kubelet set these sysctls. The sysctls belong to the host, so the machine gets copies of the
# files.
for sysctl in fs/file-max fs/nr_open vm/overcommit_memory vm/panic_on_oom kernel/panic \
    kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
  [ -e "proc/sys/$sysctl" ] || continue
  copy=run/sysctl/$(echo "$sysctl" | tr / .)
  cat "proc/sys/$sysctl" >"$copy"
  mount --bind "$copy" "proc/sys/$sysctl"
done

# From here on, absolute links in the tree resolve within the tree.
mkdir old
pivot_root . old
while [ $# -gt 0 ]; do
  mkdir -p "$(dirname "$3")"
  [ "$1" = tree ] || rm -f "$3"
  case $1 in
    program)
      touch "$3"
      # Mount the file read-only, because it belongs to the host.
      mount --bind -o ro "/old$2" "$3"
      ;;
    tree) cp -a "/old$2/." "$3" ;;
    link) ln -s "$2" "$3" ;;
    *) install -m "$1" "/old$2" "$3" ;;
  esac
  shift 3
done
umount -l /old
rmdir /old

# Ignition runs before systemd, as in the initial RAM file system of Flatcar. systemd then applies the presets at its
# first boot.
if [ -e /usr/lib/ignition/user.ign ]; then
  for stage in fetch disks files; do
    /usr/bin/ignition --root=/ --oem=metal --stage="$stage" --log-to-stdout
  done
  rm /usr/lib/ignition/user.ign /run/ignition.json
  rm -f /var/lib/dbus/machine-id
  echo uninitialized >/etc/machine-id
fi

echo "$pid" >/run/machine/pid
exec env -i container=machine PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  /usr/lib/systemd/systemd --system --unit=multi-user.target --log-target=journal-or-kmsg \
  --show-status=no
