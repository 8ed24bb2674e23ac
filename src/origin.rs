//! The origin of the stored credential: its machine, node and cluster.

use std::borrow::Cow;

use kubelet_attestation::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::kube::kubeconfig::EndpointFields;
use crate::machine::MachineDigest;

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

/// `origin.json` is invalid.
#[derive(Debug, thiserror::Error)]
pub enum OriginError {
    /// It is not the JSON that this release writes.
    #[error("it is not the JSON that this release writes")]
    Json(#[source] serde_json::Error),
    /// Another release wrote it.
    #[error("it has format {0}, and this release reads {VERSION}")]
    Version(u32),
    /// It has no valid node name.
    #[error("it names no node")]
    NodeName,
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
    /// Reads the file's content.
    pub fn parse(text: &str) -> Result<Self, OriginError> {
        let wire: Wire<'_> = serde_json::from_str(text).map_err(OriginError::Json)?;
        if wire.version != VERSION {
            return Err(OriginError::Version(wire.version));
        }
        Ok(Self {
            node_name: NodeName::parse(&wire.node_name).map_err(|_| OriginError::NodeName)?,
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

        assert!(matches!(
            changed("\"version\":1", "\"version\":2"),
            OriginError::Version(2)
        ));
        assert!(matches!(changed("\"n1\"", "\"N1\""), OriginError::NodeName));
        for (from, to) in [("{", ""), ("bootId", "bootID"), ("\"server\"", "\"sever\"")] {
            assert!(matches!(changed(from, to), OriginError::Json(_)), "{to}");
        }
        assert!(matches!(Origin::parse(""), Err(OriginError::Json(_))));
    }
}
