//! The origin of the stored credential: its machine, node and cluster.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kubelet_attestation::names::NodeName;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Invalid};
use crate::kube::kubeconfig::{ClusterEndpoint, EndpointFields, InvalidKubeconfig};
use crate::machine::MachineDigest;
use crate::store::{Store, StoreFile, StoreLock};

/// The version of the file format. A later release that only adds fields does not change the version.
const VERSION: u32 = 1;

/// The time for which renewals pause after the API server has also refused the renewed certificate.
const PAUSE: Duration = Duration::from_hours(24);

/// `origin.json`: it ties the other files of the store to a machine, a node and a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The node's name.
    pub node_name: NodeName,
    /// The cluster's API server and CA certificates.
    pub endpoint: EndpointFields,
    /// The machine.
    pub machine: MachineDigest,
    /// The boot in which the origin was last compared with this machine. Each boot reads the firmware data once.
    pub boot_id: Option<String>,
    /// The time, in seconds since 1970, at which the API server refused (403) a new certificate that had replaced a
    /// refused certificate. `None` as soon as the API server accepts the certificate.
    pub refused_again: Option<u64>,
}

/// The fields of the file. Unknown fields are ignored, because a later release can add fields, and because this release
/// must not lose the node's credential after a rollback.
///
/// Every later format keeps `version`, `nodeName`, `endpoint` and `machine` with these names and types. Without these
/// fields, the plugin could not use the credential after a rollback, and would fail.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    version: u32,
    #[serde(borrow)]
    node_name: Cow<'a, str>,
    endpoint: EndpointFields,
    #[serde(default)]
    machine: MachineDigest,
    boot_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_again: Option<u64>,
}

/// The part of the file that every release reads.
#[derive(Deserialize)]
struct Header {
    version: u32,
}

impl Origin {
    /// Reads the origin of the store, if the origin is valid.
    pub(crate) fn read(store: &Store) -> Option<Self> {
        Self::parse(&store.read(StoreFile::Origin).ok().flatten()?).ok()
    }

    /// Returns the cluster.
    pub(crate) fn cluster(&self) -> Result<ClusterEndpoint, InvalidKubeconfig> {
        ClusterEndpoint::from_fields(self.endpoint.clone(), StoreFile::Origin.name())
    }

    /// Writes the origin into the store.
    pub(crate) fn save(&self, store: &StoreLock) -> Result<(), Failure> {
        store.replace(StoreFile::Origin, &self.to_json())
    }

    /// Returns the end of the renewal pause, if the API server has also refused the renewed certificate. If the clock
    /// was set back, the pause also ends.
    pub(crate) fn paused_until(&self, now: SystemTime) -> Option<SystemTime> {
        let since = UNIX_EPOCH.checked_add(Duration::from_secs(self.refused_again?))?;
        let until = since.checked_add(PAUSE)?;
        (since <= now && now < until).then_some(until)
    }

    /// Whether a later release wrote the file.
    pub(crate) fn is_of_later_release(text: &str) -> bool {
        serde_json::from_str(text).is_ok_and(|Header { version }| version > VERSION)
    }

    /// Parses the file's content. A later format is accepted if it has the fields of this format, because the release
    /// might have been rolled back.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let wire: Wire<'_> = serde_json::from_str(text).map_err(|error| {
            Invalid::new("it is not in the JSON format of this release").because(&error)
        })?;
        if wire.version < VERSION {
            return Err(Invalid::format(wire.version, VERSION));
        }
        Ok(Self {
            node_name: NodeName::parse(&wire.node_name)
                .map_err(|_| Invalid::new("it does not contain a valid node name"))?,
            endpoint: wire.endpoint,
            machine: wire.machine,
            boot_id: wire.boot_id,
            refused_again: wire.refused_again,
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
            refused_again: self.refused_again,
        };
        // Strings and numbers always serialize.
        serde_json::to_vec(&wire).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

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
            refused_again: None,
        }
    }

    #[test]
    fn an_origin_is_unchanged_after_a_round_trip() {
        let json = origin().to_json();

        assert_eq!(
            Origin::parse(str::from_utf8(&json).unwrap()).unwrap(),
            origin()
        );
    }

    /// The content in the format of the first release, which contains all fields.
    const FIRST: &str = r#"{"version":1,"nodeName":"n1","endpoint":{"server":"https://10.0.0.1:6443","caPem":"QUJD","tlsServerName":"api","proxyUrl":"http://proxy:3128"},"machine":{"productUuid":"a","boardAssetTag":"b","serialNumber":"c","machineId":"d"},"bootId":"boot","refusedAgain":7}"#;

    #[test]
    fn the_fields_of_the_first_format_keep_their_names_and_types() {
        let machine =
            r#"{"productUuid":"a","boardAssetTag":"b","serialNumber":"c","machineId":"d"}"#;
        let mut expected = origin();
        expected.endpoint.tls_server_name = Some("api".to_owned());
        expected.machine = serde_json::from_str(machine).unwrap();
        expected.refused_again = Some(7);
        assert_ne!(expected.machine, MachineDigest::default());

        assert_eq!(Origin::parse(FIRST).unwrap(), expected);
        assert_eq!(String::from_utf8(expected.to_json()).unwrap(), FIRST);
    }

    #[test]
    fn a_later_origin_format_without_a_required_field_is_refused() {
        let mut later: Value = serde_json::from_str(FIRST).unwrap();
        later["version"] = 2.into();
        Origin::parse(&later.to_string()).unwrap();

        for (pointer, other) in [
            ("/nodeName", Value::Null),
            ("/nodeName", json!({"name": "n1"})),
            ("/endpoint", Value::Null),
            ("/endpoint", json!("https://10.0.0.1:6443")),
            ("/endpoint/server", Value::Null),
            ("/endpoint/server", json!(["https://10.0.0.1:6443"])),
            ("/endpoint/caPem", Value::Null),
            ("/endpoint/caPem", json!(["QUJD"])),
            ("/machine", json!("a")),
            ("/machine/productUuid", json!(["a"])),
        ] {
            let mut changed = later.clone();
            *changed.pointer_mut(pointer).unwrap() = other;
            let changed = changed.to_string();

            let error = Origin::parse(&changed).unwrap_err().to_string();

            let words = "it is not in the JSON format of this release: ";
            assert!(error.starts_with(words), "{pointer}: {error}");
            assert!(Origin::is_of_later_release(&changed), "{pointer}");
        }
        later["version"] = "2".into();
        assert!(!Origin::is_of_later_release(&later.to_string()));
    }

    #[test]
    fn debug_output_of_an_origin_contains_no_proxy_password() {
        let mut origin = origin();
        origin.endpoint.proxy_url = Some("http://u:pa55@proxy".to_owned());

        let shown = format!("{origin:?}");

        assert!(shown.contains("https://10.0.0.1:6443"), "{shown}");
        assert!(!shown.contains("pa55"), "{shown}");
    }

    #[test]
    fn an_invalid_origin_is_refused_with_the_reason() {
        let json = String::from_utf8(origin().to_json()).unwrap();
        let changed = |from: &str, to: &str| Origin::parse(&json.replace(from, to)).unwrap_err();

        for (from, to, words) in [
            ("\"version\":1", "\"version\":0", "it has format 0"),
            ("\"n1\"", "\"N1\"", "it does not contain a valid node name"),
            ("{", "", "it is not in the JSON format"),
            ("\"server\"", "\"sever\"", "it is not in the JSON format"),
            ("\"nodeName\"", "\"name\"", "it is not in the JSON format"),
        ] {
            let error = changed(from, to).to_string();
            assert!(error.starts_with(words), "{error}");
        }
        let error = Origin::parse("").unwrap_err().to_string();
        assert!(error.starts_with("it is not in the JSON format"), "{error}");
    }

    #[test]
    fn origin_fields_from_a_later_release_are_ignored() {
        let json = String::from_utf8(origin().to_json()).unwrap();
        for (from, to) in [
            ("\"version\":1", "\"version\":1,\"later\":{\"a\":[1]}"),
            ("\"version\":1", "\"version\":2"),
            ("\"server\"", "\"later\":null,\"server\""),
            ("\"machine\":{", "\"machine\":{\"later\":\"x\""),
        ] {
            let later = json.replace(from, to);
            assert_ne!(later, json);
            assert_eq!(Origin::parse(&later).unwrap(), origin(), "{later}");
        }
    }

    #[test]
    fn an_origin_from_a_later_release_is_reported_with_its_version() {
        for (text, is_later) in [
            ("{\"version\":2}", true),
            ("{\"version\":1}", false),
            ("{\"version\":\"2\"}", false),
            ("{", false),
        ] {
            assert_eq!(Origin::is_of_later_release(text), is_later, "{text}");
        }
    }

    #[test]
    fn renewals_pause_for_a_day_after_an_ineffective_renewal() {
        let at = |hours| UNIX_EPOCH + Duration::from_hours(hours);
        let mut origin = origin();
        assert_eq!(origin.paused_until(at(100)), None);
        origin.refused_again = Some(100 * 3600);

        for (hours, is_paused) in [(99, false), (100, true), (123, true), (124, false)] {
            let expected = is_paused.then(|| at(124));
            assert_eq!(origin.paused_until(at(hours)), expected, "{hours}");
        }
        origin.refused_again = Some(u64::MAX);
        assert_eq!(origin.paused_until(at(100)), None);
    }
}
