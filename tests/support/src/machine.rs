//! Machines that run the real systemd, the real `kubeadm join` and a real kubelet.
//!
//! ```no_run
//! use kubelet_authenticator_test_support::control_plane::{ControlPlane, Controllers};
//! use kubelet_authenticator_test_support::machine::Machine;
//!
//! let cluster = ControlPlane::builder()
//!     .anonymous_auth()
//!     .controllers(Controllers::Certificates)
//!     .start();
//! let token = cluster.prepare_for_joins();
//! let machine = Machine::builder(&cluster, "node-a").boot();
//! let joined = machine.kubeadm_join(&token.bearer(), &[("provider-id", "generic:///a")]);
//! assert!(joined.status.success());
//! cluster.wait_for_node_ready("node-a");
//! ```
//!
//! A machine is a set of namespaces (mount, network, process, host name, IPC, control group) in which systemd is
//! process 1. Its root directory is the root directory of the host or of an image, under a separate writable layer. Its
//! units are the kubelet with kubeadm's drop-in, journald, and a container runtime whose containers are processes of
//! the machine, or [containerd](MachineBuilder::containerd). The machine can connect to the API server at the same address as the host, to other servers on the host
//! if configured, and to the other machines of the test process. The host can connect to the machine's address. A boot
//! takes half a second, and a join 1 or 2 seconds.
//!
//! # Guarantees
//!
//! A machine does not change the host: the machine's files, sysctls, control groups and processes are removed when the
//! [`Machine`] is dropped, and also when the test process ends in any other way.
//!
//! The machine starts without any node files. The machine has separate directories `/etc/kubernetes`,
//! `/var/lib/kubelet`, `/etc/default`, `/etc/systemd` and `/var/log`, and no `/var/lib/kubelet-authenticator`.
//!
//! # Assumptions
//!
//! A machine needs root, Linux with overlayfs and the devices `veth` and `bridge`, Debian's directory layout
//! (`/usr/lib/systemd`), and systemd 252 or similar. The control groups can have version 1, as mounted by systemd, or
//! only version 2.

mod builder;
mod cgroups;
mod cloud_init;
mod containerd;
mod endpoint;
mod forwarder;
mod ignition;
mod kubeadm;
mod namespaces;
mod network;
mod units;

use std::io::Write;
use std::net::Ipv4Addr;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

pub use self::builder::MachineBuilder;
use self::cgroups::ControlGroup;
pub use self::containerd::{PAUSE, pod_network};
pub use self::endpoint::Endpoint;
use self::forwarder::Forwarder;
use self::kubeadm::Discovery;
pub use self::kubeadm::{IGNORED_PREFLIGHT_ERRORS, KUBELET_PATCHES, KubeadmCluster, Role};
use self::network::Network;
pub use self::units::{KUBEADM_DROP_IN, KUBELET_UNIT};
use crate::control_plane::{ControlPlane, DEADLINE};
use crate::process::{Process, Scratch, guarded, poll};

/// The directory of systemd's programs and units, on the host and in the machine.
const SYSTEMD: &str = "/usr/lib/systemd";

/// The container runtime's socket.
const RUNTIME: &str = "/run/cri.sock";

/// The environment of the commands that a test runs.
const ENVIRONMENT: [&str; 2] = [
    "HOME=/root",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
];

/// A shell script that creates the directories of the file `$2`, and then the file, with the permissions `$1` from the
/// start.
const WRITE: &str = r#"mkdir -p "$(dirname "$2")"
umask 077
cat >"$2.new"
chmod "$1" "$2.new"
mv -fT "$2.new" "$2""#;

/// A running machine. When it is dropped, it stops and does not leave any files or processes.
#[derive(Debug)]
pub struct Machine {
    // The processes are the first fields, because fields are dropped in order, and the control group must be empty.
    process: Process,
    _group: ControlGroup,
    _forwarders: Vec<Forwarder>,
    pid: i32,
    name: String,
    address: Ipv4Addr,
    discovery: Option<Discovery>,
    scratch: Scratch,
}

impl Machine {
    /// Creates a builder for a machine whose node joins this cluster. `name` is the host name.
    pub fn builder(cluster: &ControlPlane, name: &str) -> MachineBuilder {
        MachineBuilder::new(Some(cluster), name)
    }

    /// Creates a builder for a machine in a cluster that consists only of machines. `name` is the host name.
    pub fn of_no_cluster(name: &str) -> MachineBuilder {
        MachineBuilder::new(None, name)
    }

    /// The address range from which an infrastructure assigns addresses to its machines ([`MachineBuilder::at`]), in
    /// CIDR notation.
    ///
    /// # Panics
    ///
    /// Panics if no network for machines is available.
    #[track_caller]
    pub fn network() -> String {
        Network::of_this_process().assigned()
    }

    /// Several networks, in CIDR notation, for infrastructures with different owners. This function cannot be combined
    /// with [`Machine::network`].
    ///
    /// # Panics
    ///
    /// Panics if no network for machines is available.
    #[track_caller]
    pub fn networks() -> Vec<String> {
        Network::of_this_process().assigned_parts()
    }

    /// The host name of the machine, and the name of its Node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The address at which the host and other machines can reach the machine.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The process ID, on the host, of the machine's process 1.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Runs a command in the machine as root, and waits until it ends.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words)
            .output()
            .expect("setpriv can be started")
    }

    /// Runs a command in the machine, and returns the standard output.
    ///
    /// # Panics
    ///
    /// Panics if the command fails. The message includes the command's output and the machine's journal.
    #[track_caller]
    pub fn ok(&self, words: &[&str]) -> String {
        self.succeeded(words, self.run(words))
    }

    /// The contents of a file in the machine.
    ///
    /// Reads the file inside the machine, because links such as `kubelet-client-current.pem` have different targets on
    /// the host.
    #[track_caller]
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        let output = self.run(&["cat", "--", path]);
        output.status.success().then_some(output.stdout)
    }

    /// Writes a file in the machine, and creates its directories. Readers see either the old file or the new file.
    #[track_caller]
    pub fn write(&self, path: &str, mode: u32, content: impl AsRef<[u8]>) {
        let mode = format!("{mode:o}");
        let words = ["sh", "-euc", WRITE, "write", &mode, path];
        let mut child = self
            .command(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("setpriv can be started");
        let mut stdin = child.stdin.take().expect("it is piped");
        // The command can exit without reading its input, and then reports the reason.
        stdin.write_all(content.as_ref()).ok();
        drop(stdin);
        let output = child.wait_with_output().expect("a child can be waited for");
        self.succeeded(&words, output);
    }

    /// Removes a file or a directory in the machine, if it exists.
    #[track_caller]
    pub fn remove(&self, path: &str) {
        self.ok(&["rm", "-rf", "--", path]);
    }

    /// Whether this path exists in the machine.
    #[track_caller]
    pub fn exists(&self, path: &str) -> bool {
        self.run(&["test", "-e", path]).status.success()
    }

    /// The complete output of the machine's units and its process 1. The output can be read after the machine has
    /// stopped.
    #[track_caller]
    pub fn journal(&self) -> String {
        let before = ["machine.log", "kmsg"].map(|file| self.scratch.join(file));
        let mut text: Vec<_> = before
            .iter()
            .map(|file| std::fs::read(file).unwrap_or_default())
            .collect();
        let directory = self.scratch.join("journal");
        let directory = directory.to_str().expect("TMPDIR is UTF-8");
        let words = [
            "journalctl",
            "--no-pager",
            "--quiet",
            "--directory",
            directory,
        ];
        let journal = guarded(&[], &words).output();
        text.push(journal.expect("setpriv can be started").stdout);
        String::from_utf8_lossy(&text.concat()).into_owned()
    }

    /// Stops the machine as a power failure does.
    pub fn power_off(&mut self) {
        if !self.process.is_running() {
            return;
        }
        // Process 1 ends only after all other processes in its namespace (pid_namespaces(7)), and then `unshare`, which
        // waits for process 1. If `unshare` were killed, the test could not observe the end of the processes.
        if let Some(first) = Pid::from_raw(self.pid) {
            kill_process(first, Signal::KILL).ok();
            poll(DEADLINE, || self.process.exit_status());
        }
        self.process.kill();
    }

    fn command(&self, words: &[&str]) -> Command {
        let pid = self.pid.to_string();
        let namespaces = [
            "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--",
        ];
        let mut all = vec!["nsenter", "--target", &pid];
        all.extend(namespaces);
        // The path is absolute, because the machine does not have all directories that are on the PATH of the tests.
        all.extend(["/usr/bin/env", "-i"]);
        all.extend(ENVIRONMENT);
        all.extend(words);
        guarded(&[], &all)
    }

    #[track_caller]
    fn succeeded(&self, words: &[&str], output: Output) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let stdout = text(&output.stdout);
        assert!(
            output.status.success(),
            "{} failed on machine {} ({}): {}{stdout}\n{}",
            words.join(" "),
            self.name,
            output.status,
            text(&output.stderr),
            self.journal()
        );
        stdout
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.power_off();
    }
}
