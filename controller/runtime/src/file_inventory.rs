//! The inventory for a cluster without Cluster API: a file that an operator writes.
//!
//! ```yaml
//! apiVersion: attestation.cluster.x-k8s.io/v1alpha1
//! kind: MachineInventory
//! machines:
//! - name: worker-1
//!   nodeName: worker-1            # default: the machine's name
//!   providerID: demo:///worker-1
//!   addresses: [192.0.2.7]        # default: none; serving certificates are issued for these
//!   dnsNames: [worker-1.internal] # default: none; in lower case
//!   controlPlane: false           # whether it is a control-plane machine
//!   tokenID: abcdef               # the public part of this machine's bootstrap token
//! endpointHosts: [api.example.com] # default: none; not allowed in serving certificates
//! serviceRanges: [10.96.0.0/12]    # default: none; not allowed in serving certificates
//! ```
//!
//! `awsInstances: true` instead of `machines` admits the instances that `spec.aws` selects.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kubelet_attestation::ensure;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::unshared::Unshared;
use serde::Deserialize;

use node_attestation_core::identifiers::TokenId;
use node_attestation_core::inventory::{Inventory, Machine, StaticInventory, TokenOwner};
use node_attestation_core::refusal::Unavailable;
use node_attestation_core::serving::{AddressRange, InvalidAddressRange};

type BoxError = Box<dyn Error + Send + Sync>;

/// The only supported version.
const API_VERSION: &str = "attestation.cluster.x-k8s.io/v1alpha1";

/// The only supported kind.
const KIND: &str = "MachineInventory";

/// The maximum file size, which is enough for more than 10,000 machines. The limit prevents reading all of a large file
/// that was specified by mistake.
const MAX_FILE_LEN: u64 = 4 * 1024 * 1024;

/// An inventory file could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct MachineListError {
    /// The file, and the error that was found in it.
    message: String,
    source: Option<BoxError>,
}

impl MachineListError {
    fn new(message: String, source: impl Into<BoxError>) -> Self {
        Self {
            message,
            source: Some(source.into()),
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    machines: Option<Vec<Entry>>,
    #[serde(default)]
    aws_instances: bool,
    #[serde(default)]
    endpoint_hosts: Vec<String>,
    #[serde(default)]
    service_ranges: Vec<String>,
}

/// The inventory for a cluster without a management cluster.
#[derive(Debug, Clone)]
pub struct ClusterInventory {
    /// The machines. `None` if the file contains `awsInstances: true`. In this case, a program with an EC2 client must
    /// set the machines.
    pub machines: Option<Arc<dyn Inventory>>,
    /// The control-plane endpoint's hosts, in lower case, in addition to the host in the kubeconfig.
    pub endpoint_hosts: Vec<String>,
    /// The address ranges of the cluster's Services.
    pub service_ranges: Vec<AddressRange>,
}

impl ClusterInventory {
    /// Reads the file. After the file changes, its machines are read again, but its other fields are not.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read or is invalid.
    pub fn open(path: &Path) -> Result<Self, MachineListError> {
        let (version, read) = read(path)?;
        let machines = read.machines.map(|machines| {
            let list: Arc<dyn Inventory> = Arc::new(MachineList {
                path: path.to_owned(),
                fixed: read.fixed.clone(),
                current: Unshared::new(Current {
                    version: Some(version),
                    machines: Arc::new(machines),
                }),
            });
            list
        });
        Ok(Self {
            machines,
            endpoint_hosts: read.fixed.endpoint_hosts,
            service_ranges: read.fixed.service_ranges,
        })
    }
}

/// The content of an inventory file.
#[derive(Debug)]
struct Read {
    /// The machines. `None` if the machines are AWS instances.
    machines: Option<StaticInventory>,
    fixed: Fixed,
}

/// The fields in a file that apply only at startup.
#[derive(Debug, Clone, PartialEq)]
struct Fixed {
    endpoint_hosts: Vec<String>,
    service_ranges: Vec<AddressRange>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    name: String,
    node_name: Option<String>,
    #[serde(rename = "providerID")]
    provider_id: String,
    #[serde(default)]
    addresses: Vec<String>,
    #[serde(default)]
    dns_names: Vec<String>,
    #[serde(default)]
    control_plane: bool,
    #[serde(rename = "tokenID")]
    token_id: Option<String>,
}

/// The machines in a file. The file is read again after each change.
///
/// # Guarantees
///
/// - Every lookup uses the current file or, if it is invalid, the last valid version.
/// - An error in a changed file is logged once.
#[derive(Debug)]
struct MachineList {
    path: PathBuf,
    /// The other fields of the file, as read at startup.
    fixed: Fixed,
    /// Not shared: a process with an inventory file serves only one cluster.
    current: Unshared<Current>,
}

#[derive(Debug)]
struct Current {
    version: Option<FileVersion>,
    machines: Arc<StaticInventory>,
}

/// The inode, length and modification time of a file. Every replacement and every write changes them.
type FileVersion = (u64, u64, i64, i64);

impl MachineList {
    /// The machines in the current file.
    fn machines(&self) -> Arc<StaticInventory> {
        let mut current = self.current.lock();
        let version = fs::metadata(&self.path).ok().map(|meta| version_of(&meta));
        if version != current.version {
            match read(&self.path).and_then(|read| self.listed(read)) {
                Ok((version, machines)) => {
                    tracing::info!(inventory = %self.path.display(), "reloaded the inventory");
                    current.version = Some(version);
                    current.machines = Arc::new(machines);
                }
                Err(error) => {
                    tracing::error!(
                        error = error_chain(&error),
                        "the changed inventory is invalid; the controller still uses the previous inventory"
                    );
                    current.version = version;
                }
            }
        }
        Arc::clone(&current.machines)
    }

    /// The machines in a changed file. Returns an error if a field that applies only at startup has changed.
    fn listed(
        &self,
        (version, read): (FileVersion, Read),
    ) -> Result<(FileVersion, StaticInventory), MachineListError> {
        let path = self.path.display();
        let refused = |what: &str| MachineListError {
            message: format!("{path}: {what}: restart the controller"),
            source: None,
        };
        let machines = read.machines;
        let machines =
            machines.ok_or_else(|| refused("awsInstances takes effect only at startup"))?;
        ensure!(
            read.fixed == self.fixed,
            refused("endpointHosts and serviceRanges take effect only at startup")
        );
        Ok((version, machines))
    }
}

#[async_trait::async_trait]
impl Inventory for MachineList {
    async fn by_provider_id(
        &self,
        provider_id: &ProviderId,
    ) -> Result<Option<Machine>, Unavailable> {
        self.machines().by_provider_id(provider_id).await
    }

    async fn by_token(&self, token: &TokenId) -> Result<Option<TokenOwner>, Unavailable> {
        self.machines().by_token(token).await
    }

    async fn by_address(&self, address: IpAddr) -> Result<Vec<Machine>, Unavailable> {
        self.machines().by_address(address).await
    }

    async fn by_name(&self, name: &str) -> Result<Vec<Machine>, Unavailable> {
        self.machines().by_name(name).await
    }

    async fn by_machine_name(&self, name: &str) -> Result<Option<Machine>, Unavailable> {
        self.machines().by_machine_name(name).await
    }
}

fn version_of(meta: &fs::Metadata) -> FileVersion {
    (meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())
}

fn read(path: &Path) -> Result<(FileVersion, Read), MachineListError> {
    let failed =
        |error: io::Error| MachineListError::new(format!("cannot read {}", path.display()), error);
    let file = File::open(path).map_err(failed)?;
    let version = version_of(&file.metadata().map_err(failed)?);
    let mut text = String::new();
    let mut file = file.take(MAX_FILE_LEN + 1);
    file.read_to_string(&mut text).map_err(failed)?;
    if u64::try_from(text.len()).map_or(true, |len| len > MAX_FILE_LEN) {
        return Err(MachineListError {
            message: format!("{} is longer than {MAX_FILE_LEN} bytes", path.display()),
            source: None,
        });
    }
    Ok((version, parse(path, &text)?))
}

fn parse(path: &Path, text: &str) -> Result<Read, MachineListError> {
    let path = path.display();
    let document: Document = serde_saphyr::from_str(text).map_err(|error| {
        MachineListError::new(format!("{path} is not a list of machines"), error)
    })?;
    for (field, value, expected) in [
        ("apiVersion", &document.api_version, API_VERSION),
        ("kind", &document.kind, KIND),
    ] {
        if value != expected {
            return Err(MachineListError {
                message: format!("{path}: {field} is not {expected}"),
                source: None,
            });
        }
    }
    let fixed = fixed(&document)
        .map_err(|(field, error)| MachineListError::new(format!("{path}: {field}"), error))?;
    let machines = match (document.machines, document.aws_instances) {
        (Some(machines), false) => Some(machines),
        (None, true) => None,
        (Some(_), true) | (None, false) => {
            return Err(MachineListError {
                message: format!(
                    "{path}: set either machines (a list) or awsInstances: true (the instances that spec.aws selects)"
                ),
                source: None,
            });
        }
    };
    let machines = machines.map(|machines| {
        let entries = machines.into_iter().enumerate();
        let machines = entries.map(|(index, entry)| {
            entry.into_machine().map_err(|(field, error)| {
                MachineListError::new(format!("{path}: machines[{index}].{field}"), error)
            })
        });
        StaticInventory::new(machines.collect::<Result<_, _>>()?)
            .map_err(|error| MachineListError::new(format!("{path} is ambiguous"), error))
    });
    Ok(Read {
        machines: machines.transpose()?,
        fixed,
    })
}

/// The fields in the document, except the machines. Returns an error if a field is invalid.
fn fixed(document: &Document) -> Result<Fixed, (String, BoxError)> {
    let hosts = document.endpoint_hosts.iter().enumerate();
    let hosts = hosts.map(|(index, host)| {
        let is_address = host.parse::<IpAddr>().is_ok();
        // The rules for node names also apply to DNS names.
        match NodeName::parse(host) {
            _ if is_address => Ok(host.clone()),
            Ok(name) => Ok(name.as_str().to_owned()),
            Err(_) => {
                let what = "must be an IP address, or a DNS name in lower case, without a port";
                Err((format!("endpointHosts[{index}]"), what.into()))
            }
        }
    });
    let ranges = document.service_ranges.iter().enumerate();
    let ranges = ranges.map(|(index, range)| {
        range
            .parse()
            .map_err(|error: InvalidAddressRange| (format!("serviceRanges[{index}]"), error.into()))
    });
    Ok(Fixed {
        endpoint_hosts: hosts.collect::<Result<_, (String, BoxError)>>()?,
        service_ranges: ranges.collect::<Result<_, (String, BoxError)>>()?,
    })
}

impl Entry {
    /// Converts the entry to a machine. An error contains the name of the invalid field.
    fn into_machine(self) -> Result<Machine, (&'static str, BoxError)> {
        ensure!(!self.name.is_empty(), ("name", "empty".into()));
        let (field, node_name) = match &self.node_name {
            Some(name) => ("nodeName", name),
            None => ("name", &self.name),
        };
        let node_name = NodeName::parse(node_name).map_err(|error| (field, error.into()))?;
        let provider_id = ProviderId::parse(&self.provider_id);
        let provider_id = provider_id.map_err(|error| ("providerID", error.into()))?;
        let addresses = self.addresses.iter().map(|address| address.parse());
        let addresses = addresses.collect::<Result<_, _>>();
        // The rules for node names also apply to DNS names.
        let dns_names = self.dns_names.iter().map(|name| NodeName::parse(name));
        let dns_names = dns_names.map(|name| name.map(|name| name.as_str().to_owned()));
        let dns_names = dns_names.collect::<Result<_, _>>();
        let token_id = self.token_id.as_deref().map(TokenId::parse).transpose();
        Ok(Machine {
            provider_id: Some(provider_id),
            node_name: Some(node_name),
            addresses: addresses.map_err(|_| ("addresses", "not an IP address".into()))?,
            dns_names: dns_names
                .map_err(|_| ("dnsNames", "not a DNS name in lower case".into()))?,
            control_plane: self.control_plane,
            token_id: token_id.map_err(|error| ("tokenID", error.into()))?,
            ..Machine::new(self.name)
        })
    }
}

#[cfg(test)]
mod tests;
