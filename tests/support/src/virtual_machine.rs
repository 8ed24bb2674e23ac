//! Virtual machines with firmware, Secure Boot and a TPM 2.0, which boot Debian's signed programs in QEMU.
//!
//! ```no_run
//! use kubelet_authenticator_test_support::control_plane::ControlPlane;
//! use kubelet_authenticator_test_support::swtpm::Swtpm;
//! use kubelet_authenticator_test_support::virtual_machine::{Image, SecureBoot, VirtualMachine};
//!
//! let cluster = ControlPlane::start();
//! let machine = VirtualMachine::new("node-a", &cluster, &Swtpm::start());
//! machine.file("/etc/greeting", 0o644, "hello");
//! let boot = machine.boot(Image::Unified, SecureBoot::On, "cat /etc/greeting");
//! assert_eq!(boot.output(), "hello");
//! println!("{:02x?}", boot.registers()[&7]);
//! ```
//!
//! A machine has OVMF, one processor, a TPM that the kernel drives (`/dev/tpmrm0`), and two disks: the image, which
//! never changes, and its own disk, which contains the root directory. A boot runs the commands of the test, and
//! switches the machine off. The machine keeps the state of its TPM and its own disk for the next boot.
//! `tests/boots/build` builds the images.
//!
//! By default, the root directory has only busybox and the libraries of the TPM helper. With
//! [`VirtualMachine::debian`], it is a Debian system with systemd and containerd, from `tests/boots/debian/build`. The
//! commands of the test then run as a service.
//!
//! The machine can connect only to the API server, at [`SERVER`].
//!
//! # Time
//!
//! QEMU interprets every instruction, so the tests do not need hardware virtualization. A boot takes 15 seconds, and
//! uses the same amount of processor time. With Debian, it takes 30 seconds. Only one machine of a process boots at a
//! time.
//!
//! # Panics
//!
//! Panics if an expected event does not occur, with a description of the event. If the firmware rejects an image, the
//! machine waits at the boot manager until the deadline.

mod boot;
mod disk;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

pub use self::boot::Boot;
use self::disk::Disk;
use crate::binaries::build;
use crate::control_plane::ControlPlane;
use crate::process::{Launch, Process, Scratch};
use crate::swtpm::Swtpm;

/// The URL at which the machine connects to the API server. The server's certificate contains this address.
pub const SERVER: &str = "https://10.96.0.1:443";

/// The deadline for a boot and its commands. A boot takes 15 to 30 seconds on an idle machine, and a kubelet runs its
/// first Pods after one more minute. The machines that run tests are busy.
const DEADLINE: Duration = Duration::from_secs(20 * 60);

/// The directory of Debian's firmware package.
const FIRMWARE: &str = "/usr/share/OVMF";

/// The file with the commands of the test.
const COMMANDS: &str = "/etc/commands";

/// Only one machine of a process boots at a time, because each boot keeps one processor busy.
static BOOTS: Mutex<()> = Mutex::new(());

static IMAGES: LazyLock<PathBuf> =
    LazyLock::new(|| build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../boots/build")));

static DEBIAN: LazyLock<PathBuf> =
    LazyLock::new(|| build(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../boots/debian/build")));

/// The system on a machine's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Busybox,
    Debian,
}

impl System {
    /// The disk that each machine copies.
    fn disk(self) -> PathBuf {
        let directory = match self {
            Self::Busybox => &IMAGES,
            Self::Debian => &DEBIAN,
        };
        directory.join("root.img")
    }

    /// The machine's memory in MiB. The registers do not depend on this value.
    fn memory(self) -> &'static str {
        match self {
            Self::Busybox => "512",
            Self::Debian => "1536",
        }
    }
}

/// The programs that a machine boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// A signed unified kernel image: systemd's stub with the kernel, its command line and its initrd.
    Unified,
    /// A signed unified kernel image with a different kernel.
    UnifiedOtherKernel,
    /// A signed unified kernel image with a kernel command line that enforces SELinux. Only Debian has a policy.
    UnifiedSelinux,
    /// shim, GRUB and the kernel, as Debian signs them.
    Grub,
    /// shim, GRUB and the kernel, with a different kernel command line.
    GrubOtherArguments,
}

/// Whether the firmware boots only signed programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecureBoot {
    /// The firmware has the keys that have signed the image.
    On,
    /// The firmware has no keys.
    Off,
}

impl Image {
    /// The name of the image's disk file.
    fn file(self) -> &'static str {
        match self {
            Self::Unified => "uki.img",
            Self::UnifiedOtherKernel => "uki-kernel.img",
            Self::UnifiedSelinux => "uki-selinux.img",
            Self::Grub => "grub.img",
            Self::GrubOtherArguments => "grub-arguments.img",
        }
    }

    /// The name of the file with the firmware variables for a new machine.
    fn variables(self, secure_boot: SecureBoot) -> &'static str {
        match (secure_boot, self) {
            (SecureBoot::Off, _) => "OVMF_VARS_4M.fd",
            // These variables contain Debian's test key.
            (SecureBoot::On, Self::Unified | Self::UnifiedOtherKernel | Self::UnifiedSelinux) => {
                "OVMF_VARS_4M.snakeoil.fd"
            }
            // These variables contain Microsoft's keys, as in most machines that are sold.
            (SecureBoot::On, Self::Grub | Self::GrubOtherArguments) => "OVMF_VARS_4M.ms.fd",
        }
    }
}

/// A machine that is switched off.
#[derive(Debug)]
pub struct VirtualMachine {
    /// The machine's UUID in its firmware (SMBIOS).
    uuid: String,
    system: System,
    disk: Disk,
    /// The directory with the state of the machine's TPM.
    tpm: PathBuf,
    /// The API server's port on the host.
    port: u16,
    scratch: Scratch,
}

impl VirtualMachine {
    /// Creates a machine with this host name, which can connect to the API server of this cluster. The machine's TPM
    /// starts with a copy of the state of `tpm`.
    #[track_caller]
    pub fn new(name: &str, cluster: &ControlPlane, tpm: &Swtpm) -> Self {
        Self::with_system(System::Busybox, name, cluster, tpm)
    }

    /// Like [`new`](Self::new), but with Debian, systemd and containerd on the disk.
    #[track_caller]
    pub fn debian(name: &str, cluster: &ControlPlane, tpm: &Swtpm) -> Self {
        Self::with_system(System::Debian, name, cluster, tpm)
    }

    #[track_caller]
    fn with_system(system: System, name: &str, cluster: &ControlPlane, tpm: &Swtpm) -> Self {
        let scratch = Scratch::new("virtual-machine");
        let disk = Disk::copy_of(&system.disk(), &scratch.join("root.img"));
        disk.write("/etc/hostname", 0o644, format!("{name}\n"));
        Self::made(scratch, system, disk, port_of(cluster), tpm)
    }

    /// Creates a machine whose disk is a copy of the other machine's disk. The new machine has a different UUID in its
    /// firmware, and its TPM starts with a copy of the state of `tpm`.
    #[track_caller]
    pub fn with_disk_of(other: &Self, tpm: &Swtpm) -> Self {
        let scratch = Scratch::new("virtual-machine");
        let disk = Disk::copy_of(other.disk.path(), &scratch.join("root.img"));
        Self::made(scratch, other.system, disk, other.port, tpm)
    }

    #[track_caller]
    fn made(scratch: Scratch, system: System, disk: Disk, port: u16, tpm: &Swtpm) -> Self {
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid");
        let state = scratch.directory("tpm");
        tpm.copy_state(&state);
        Self {
            uuid: uuid.expect("the kernel makes UUIDs").trim().to_owned(),
            system,
            disk,
            tpm: state,
            port,
            scratch,
        }
    }

    /// Clears the machine's TPM, as a user does in the firmware setup.
    #[track_caller]
    pub fn clear_tpm(&self) {
        Swtpm::clear_at(&self.tpm);
    }

    /// Writes a file at this path on the machine's disk. The directory of the file must exist.
    #[track_caller]
    pub fn file(&self, path: &str, mode: u32, content: impl AsRef<[u8]>) {
        self.disk.write(path, mode, content);
    }

    /// Copies a program from the host to this path on the machine's disk. The directory of the program must exist.
    #[track_caller]
    pub fn program(&self, path: &str, host: &Path) {
        self.disk.copy_in(path, host);
    }

    /// The content of the file at this path on the machine's disk. `None` if the file does not exist.
    #[track_caller]
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        self.disk.read(path)
    }

    /// Boots the image with the firmware variables of a new machine, runs the commands in a shell, and waits until the
    /// machine is off.
    #[track_caller]
    pub fn boot(&self, image: Image, secure_boot: SecureBoot, commands: &str) -> Boot {
        let machine = self.run(image, secure_boot, commands);
        if self.system == System::Debian {
            // The machine does not unmount its disk.
            self.disk.recover();
        }
        Boot::read(&self.disk, &machine)
    }

    /// Like [`boot`](Self::boot), but the power fails after this time, counted from the start of the commands. Neither
    /// the file system nor the TPM is shut down.
    #[track_caller]
    pub fn boot_and_lose_power(
        &self,
        image: Image,
        secure_boot: SecureBoot,
        commands: &str,
        after: Duration,
    ) {
        let cut = format!(
            "(sleep {}; echo b >/proc/sysrq-trigger) &\n{commands}\nwait\n",
            after.as_secs_f64()
        );
        self.run(image, secure_boot, &cut);
        // The next boot would also replay the journal, but the host can write to the disk before that boot.
        self.disk.recover();
    }

    /// Boots, and waits until the machine is off.
    #[track_caller]
    fn run(&self, image: Image, secure_boot: SecureBoot, commands: &str) -> Process {
        self.disk.write(COMMANDS, 0o644, commands);
        let variables = self.scratch.join("variables.fd");
        let new = Path::new(FIRMWARE).join(image.variables(secure_boot));
        fs::copy(new, &variables).expect("the package ovmf has variables");
        let _turn = BOOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let tpm = self.start_tpm();
        let mut machine = self
            .hardware(image, &variables)
            .spawn(&self.scratch.join("qemu.log"));
        let status = machine.wait(DEADLINE);
        assert!(status.success(), "QEMU: {status}{}", machine.log());
        drop(tpm);
        machine
    }

    /// Starts the machine's TPM, which exits when QEMU disconnects.
    #[track_caller]
    fn start_tpm(&self) -> Process {
        let (socket, written) = (self.socket(), self.scratch.join("swtpm.pid"));
        for file in [&socket, &written] {
            // Remove the files of an earlier boot.
            fs::remove_file(file).ok();
        }
        let mut process = Launch::new("swtpm", "swtpm")
            .args(["socket", "--tpm2", "--terminate"])
            .args(["--tpmstate", &format!("dir={}", self.tpm.display())])
            .args(["--pid", &format!("file={}", written.display())])
            .args(["--ctrl", &format!("type=unixio,path={}", socket.display())])
            .spawn(&self.scratch.join("swtpm.log"));
        // swtpm writes its process ID when it starts to listen.
        process.poll_alive("listen", DEADLINE, |_| written.exists().then_some(()));
        process
    }

    fn socket(&self) -> PathBuf {
        self.scratch.join("tpm.sock")
    }

    /// The command that runs the machine.
    fn hardware(&self, image: Image, variables: &Path) -> Launch {
        let drive = |id: &str, file: &Path, more: &str| {
            format!("if=none,id={id},format=raw,file={}{more}", file.display())
        };
        let flash = |unit: u8, file: &Path, more: &str| {
            format!(
                "if=pflash,unit={unit},format=raw,file={}{more}",
                file.display()
            )
        };
        let code = Path::new(FIRMWARE).join("OVMF_CODE_4M.fd");
        // With a forwarding to a host address, QEMU would use a single connection for the lifetime of the machine. With
        // a forwarding to a command, QEMU runs the command once for each connection.
        let network = format!(
            "user,id=net,restrict=on,ipv6=off,net=10.96.0.0/24,guestfwd=tcp:10.96.0.1:443-cmd:{} nc 127.0.0.1 {}",
            IMAGES.join("busybox").display(),
            self.port
        );
        Launch::new("qemu", "qemu-system-x86_64")
            .args(["-accel", "tcg", "-machine", "q35,smm=off"])
            // The firmware measures the processor and the devices, so they must not depend on the host.
            .args(["-cpu", "max,la57=off", "-smp", "1"])
            .args(["-m", self.system.memory()])
            .args(["-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-uuid", &self.uuid])
            .args(["-drive", &flash(0, &code, ",readonly=on")])
            .args(["-drive", &flash(1, variables, "")])
            .args(["-drive"])
            .args([drive("boot", &IMAGES.join(image.file()), ",snapshot=on")])
            .args([
                "-device",
                "virtio-blk-pci,drive=boot,bootindex=0,serial=boot",
            ])
            .args(["-drive", &drive("root", self.disk.path(), "")])
            .args(["-device", "virtio-blk-pci,drive=root,serial=root"])
            .args(["-netdev", &network])
            // The firmware would measure an option ROM of the network card.
            .args(["-device", "virtio-net-pci,netdev=net,romfile="])
            .args(["-chardev"])
            .args([format!("socket,id=tpm,path={}", self.socket().display())])
            .args(["-tpmdev", "emulator,id=tpm0,chardev=tpm"])
            .args(["-device", "tpm-crb,tpmdev=tpm0"])
            .args(["-serial", "stdio"])
    }
}

/// The API server's port on loopback.
fn port_of(cluster: &ControlPlane) -> u16 {
    let (_, port) = cluster.server().rsplit_once(':').expect("it has a port");
    port.parse().expect("a port")
}
