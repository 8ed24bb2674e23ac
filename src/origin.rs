//! The origin of the stored credential: its machine, node and cluster.

use std::borrow::Cow;

use kubelet_attestation::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Invalid};
use crate::kube::kubeconfig::{ClusterEndpoint, EndpointFields, InvalidKubeconfig};
use crate::machine::MachineDigest;
use crate::store::{Store, StoreFile, StoreLock};

/// The version of the file format.
const VERSION: u32 = 1;

/// `origin.json`: it ties the other files of the store to a machine, a node and a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The node's name.
    pub node_name: NodeName,
    /// The cluster's API server and CA certificates.
    pub endpoint: EndpointFields,
    /// The machine.
    pub machine: MachineDigest,
    /// The boot of the last comparison with this machine. Each boot reads the firmware once.
    pub boot_id: Option<String>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire<'a> {
    version: u32,
    #[serde(borrow)]
    node_name: Cow<'a, str>,
    endpoint: EndpointFields,
    #[serde(default)]
    machine: MachineDigest,
    boot_id: Option<String>,
}

impl Origin {
    /// Reads the origin of the store, if there is a valid one.
    pub(crate) fn read(store: &Store) -> Option<Self> {
        Self::parse(&store.read(StoreFile::Origin).ok().flatten()?).ok()
    }

    /// The cluster.
    pub(crate) fn cluster(&self) -> Result<ClusterEndpoint, InvalidKubeconfig> {
        ClusterEndpoint::from_fields(self.endpoint.clone(), StoreFile::Origin.name())
    }

    /// Writes it into the store.
    pub(crate) fn save(&self, store: &StoreLock) -> Result<(), Failure> {
        store.replace(StoreFile::Origin, &self.to_json())
    }

    /// Reads the file's content.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let wire: Wire<'_> = serde_json::from_str(text).map_err(|error| {
            Invalid::new("it is not the JSON that this release writes").because(&error)
        })?;
        if wire.version != VERSION {
            return Err(Invalid::format(wire.version, VERSION));
        }
        Ok(Self {
            node_name: NodeName::parse(&wire.node_name)
                .map_err(|_| Invalid::new("it names no node"))?,
            endpoint: wire.endpoint,
            machine: wire.machine,
            boot_id: wire.boot_id,
        })
    }

    /// The file's content.
    pub fn to_json(&self) -> Vec<u8> {
        let wire = Wire {
            version: VERSION,
            node_name: self.node_name.as_str().into(),
            endpoint: self.endpoint.clone(),
            machine: self.machine.clone(),
            boot_id: self.boot_id.clone(),
        };
        // Strings and numbers always serialize.
        serde_json::to_vec(&wire).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin() -> Origin {
        Origin {
            node_name: NodeName::parse("n1").unwrap(),
            endpoint: EndpointFields {
                server: "https://10.0.0.1:6443".to_owned(),
                tls_server_name: None,
                proxy_url: Some("http://proxy:3128".to_owned()),
                ca_pem: "QUJD".to_owned(),
            },
            machine: MachineDigest::default(),
            boot_id: Some("boot".to_owned()),
        }
    }

    #[test]
    fn an_origin_reads_back() {
        let json = origin().to_json();

        assert_eq!(
            Origin::parse(str::from_utf8(&json).unwrap()).unwrap(),
            origin()
        );
    }

    #[test]
    fn debug_does_not_show_a_proxys_password() {
        let mut origin = origin();
        origin.endpoint.proxy_url = Some("http://u:pa55@proxy".to_owned());

        let shown = format!("{origin:?}");

        assert!(shown.contains("https://10.0.0.1:6443"), "{shown}");
        assert!(!shown.contains("pa55"), "{shown}");
    }

    #[test]
    fn other_content_is_refused_with_the_reason() {
        let json = String::from_utf8(origin().to_json()).unwrap();
        let changed = |from: &str, to: &str| Origin::parse(&json.replace(from, to)).unwrap_err();

        for (from, to, words) in [
            ("\"version\":1", "\"version\":2", "it has format 2"),
            ("\"n1\"", "\"N1\"", "it names no node"),
            ("{", "", "it is not the JSON"),
            ("bootId", "bootID", "it is not the JSON"),
            ("\"server\"", "\"sever\"", "it is not the JSON"),
        ] {
            let error = changed(from, to).to_string();
            assert!(error.starts_with(words), "{error}");
        }
        assert!(Origin::parse("").is_err());
    }
}
