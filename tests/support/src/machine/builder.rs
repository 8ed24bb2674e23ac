use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use x509_parser::parse_x509_certificate;

use super::cgroups::ControlGroup;
use super::containerd::Runtime;
use super::forwarder::Forwarder;
use super::kubeadm::{Discovery, KUBELET_PATCHES};
use super::network::Network;
use super::units::{self, Reached};
use super::{Machine, namespaces};
use crate::binaries::control_plane_binary;
use crate::control_plane::{ControlPlane, kubelet_configuration};
use crate::hex::hex;
use crate::process::{Scratch, poll};

/// The programs of every node, in `/usr/bin`, and the programs in a control plane's static pods.
const PROGRAMS: [&str; 8] = [
    "etcd",
    "fakecri",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubeadm",
    "kubectl",
    "kubelet",
];

/// The program in the image `pause`, which kubeadm runs to check that pods work.
const PAUSE: &str = "#!/bin/sh\n[ \"$1\" = -v ] || exec sleep infinity\n";

/// The deadline for a boot, which takes half a second on an idle machine.
const BOOT: Duration = Duration::from_secs(180);

/// Only one machine boots at a time in each process. If machines booted in parallel, each boot would take longer than
/// all boots in sequence.
static BOOTS: Mutex<()> = Mutex::new(());

/// A builder for a machine.
#[derive(Debug)]
#[must_use = "nothing is started before `boot`"]
pub struct MachineBuilder {
    name: String,
    discovery: Option<Discovery>,
    scratch: Scratch,
    layers: String,
    // The files and programs to place in the machine, keyed by path. The last entry for a path takes precedence.
    placed: BTreeMap<String, Placed>,
    files: usize,
    kubelet_arguments: Vec<String>,
    reached: Vec<Reached>,
    runtime: Runtime,
    network: &'static Network,
    address: Ipv4Addr,
}

#[derive(Debug)]
struct Placed {
    permissions: String,
    source: PathBuf,
}

impl MachineBuilder {
    pub(super) fn new(cluster: Option<&ControlPlane>, name: &str) -> Self {
        namespaces::require();
        let network = Network::of_this_process();
        let discovery = cluster.map(|cluster| Discovery {
            endpoint: cluster.server().trim_start_matches("https://").to_owned(),
            ca_hash: public_key_hash(&cluster.ca().certificate_der()),
        });
        let server = |discovery: &Discovery| {
            let server = discovery.endpoint.parse::<SocketAddr>();
            Reached::itself(server.expect("the API server has an address"))
        };
        let builder = Self {
            name: name.to_owned(),
            reached: discovery.iter().map(server).collect(),
            runtime: Runtime::Processes,
            discovery,
            scratch: Scratch::new("machine"),
            layers: "/".to_owned(),
            placed: BTreeMap::new(),
            files: 0,
            kubelet_arguments: Vec::new(),
            network,
            address: network.next(),
        };
        let patch = format!("{KUBELET_PATCHES}/kubeletconfiguration+strategic.json");
        let builder = builder.file("/usr/bin/pause", 0o755, PAUSE).file(
            &patch,
            0o644,
            kubelet_configuration().to_string(),
        );
        PROGRAMS.iter().fold(builder, |builder, program| {
            let path = format!("/usr/bin/{program}");
            builder.program(&path, &control_plane_binary(program))
        })
    }

    /// The address that the machine will have.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Assigns this address from a [`Machine::network`].
    pub fn at(mut self, address: Ipv4Addr) -> Self {
        self.address = address;
        self
    }

    /// Uses the root directory of an image instead of the host's root directory. The argument lists directories on the
    /// host as layers, separated by colons, starting with the upper layer. The machine also has the drop-ins for the
    /// kubelet's unit from the image. The machine does not have the image's other units or its `/etc/systemd`.
    pub fn image(mut self, layers: &str) -> Self {
        layers.clone_into(&mut self.layers);
        self
    }

    /// Places a file at this absolute path, and creates its directories, before systemd starts.
    ///
    /// # Panics
    ///
    /// Panics if the path is not absolute.
    #[track_caller]
    pub fn file(mut self, path: &str, mode: u32, content: impl AsRef<[u8]>) -> Self {
        self.files += 1;
        let source = format!("file-{}", self.files);
        let source = self.scratch.write(&source, content);
        self.place(path, format!("{mode:o}"), source)
    }

    /// Places a program from the host at this absolute path. The file is a read-only mount from the host, so the
    /// machine can neither change nor remove it.
    ///
    /// # Panics
    ///
    /// Panics if the program does not exist, or if the path is not absolute.
    #[track_caller]
    pub fn program(self, path: &str, host: &Path) -> Self {
        let source = fs::canonicalize(host)
            .unwrap_or_else(|error| panic!("no program {}: {error}", host.display()));
        self.place(path, "program".to_owned(), source)
    }

    /// Uses the Kubernetes programs in this directory on the host. These programs can have a different version.
    ///
    /// # Panics
    ///
    /// Panics if a program is missing.
    #[track_caller]
    pub fn kubernetes(self, directory: &Path) -> Self {
        PROGRAMS.iter().fold(self, |builder, program| {
            builder.program(&format!("/usr/bin/{program}"), &directory.join(program))
        })
    }

    /// Adds a directory tree from the host as the lowest layer of the machine's root directory.
    #[track_caller]
    pub(super) fn tree(self, host: &Path) -> Self {
        self.place("/", "tree".to_owned(), host.to_owned())
    }

    /// Creates a symbolic link at this absolute path.
    #[track_caller]
    pub fn link(self, path: &str, to: &str) -> Self {
        self.place(path, "link".to_owned(), PathBuf::from(to))
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Adds a flag for the kubelet, in the machine's `/etc/default/kubelet`.
    pub fn kubelet_arg(mut self, argument: impl Into<String>) -> Self {
        self.kubelet_arguments.push(argument.into());
        self
    }

    /// Allows the machine to connect to a server on the host at the server's own loopback address. This is not
    /// necessary for the API server.
    pub fn reaches(mut self, server: SocketAddr) -> Self {
        self.reached.push(Reached::itself(server));
        self
    }

    /// Gives a server on the host this address of a Service, which the machine and its Pods can use. It replaces
    /// kube-proxy.
    pub fn service(mut self, address: SocketAddr, server: SocketAddr) -> Self {
        self.reached.push(Reached {
            listen: address,
            server,
        });
        self
    }

    pub(super) fn runtime(mut self, runtime: Runtime) -> Self {
        self.runtime = runtime;
        self
    }

    #[track_caller]
    fn place(mut self, path: &str, permissions: String, source: PathBuf) -> Self {
        assert!(path.starts_with('/'), "{path} is not an absolute path");
        let placed = Placed {
            permissions,
            source,
        };
        self.placed.insert(path.to_owned(), placed);
        self
    }

    /// Boots the machine, and waits until systemd has started its units. The kubelet is one of these units. As on every
    /// node, the kubelet fails and is restarted until `kubeadm join` has configured it.
    ///
    /// # Panics
    ///
    /// Panics if the machine cannot be created, or does not boot in time. The message includes the machine's journal.
    #[track_caller]
    pub fn boot(mut self) -> Machine {
        if !self.kubelet_arguments.is_empty() {
            let arguments = self.kubelet_arguments.join(" ");
            let line = format!("KUBELET_EXTRA_ARGS=\"{arguments}\"\n");
            self = self.file("/etc/default/kubelet", 0o644, line);
        }
        let Self {
            name,
            discovery,
            scratch,
            layers,
            placed,
            reached,
            runtime,
            network,
            address,
            ..
        } = self;

        let _turn = BOOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let host = scratch.directory("host");
        let forwarders = reached
            .iter()
            .map(|reached| Forwarder::on_socket(&host.join(reached.socket()), reached.server))
            .collect();
        units::write(&scratch.directory("units"), &reached, runtime);

        let unique = scratch.path().file_name().expect("it has a name");
        let unique = unique.to_str().expect("it is ASCII");
        let group = ControlGroup::make(
            format!("kubelet-authenticator-{name}-{unique}"),
            runtime == Runtime::Containerd,
        );
        let placed = placed.into_iter().flat_map(|(target, placed)| {
            let source = placed.source.into_os_string().into_string();
            [
                placed.permissions,
                source.expect("the path is UTF-8"),
                target,
            ]
        });
        let placed = placed.collect();
        let mut process =
            namespaces::start(&name, (network, address), &group, &scratch, &layers, placed);
        let pid = process.poll_alive("run systemd", BOOT, |_| {
            let pid = fs::read_to_string(host.join("pid")).ok()?;
            pid.strip_suffix('\n')?.parse().ok()
        });
        let mut machine = Machine {
            process,
            _group: group,
            _forwarders: forwarders,
            pid,
            name,
            address,
            discovery,
            scratch,
        };
        machine.wait_until_booted();
        machine
    }
}

impl Machine {
    #[track_caller]
    fn wait_until_booted(&mut self) {
        let booted = poll(BOOT, || {
            let asked = self.run(&["systemctl", "is-active", "--quiet", "multi-user.target"]);
            (asked.status.success() || !self.process.is_running()).then_some(())
        });
        assert!(
            booted.is_some() && self.process.is_running(),
            "machine {} did not boot within {BOOT:?}:\n{}",
            self.name,
            self.journal()
        );
    }
}

/// The hash with which `kubeadm join` identifies a certificate authority (RFC 7469, section 2.4).
pub(super) fn public_key_hash(certificate: &[u8]) -> String {
    let (_, certificate) = parse_x509_certificate(certificate).expect("it is a certificate");
    format!(
        "sha256:{}",
        hex(digest(&SHA256, certificate.public_key().raw).as_ref())
    )
}
