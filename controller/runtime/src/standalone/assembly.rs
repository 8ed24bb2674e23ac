//! Creates the decision context for a cluster from files. The cluster's controller and the command `explain` use it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kubelet_attestation::names::Audience;
use node_attestation_core::crd::{GuestReportedAddresses, KubeletAuthentication};
use node_attestation_core::decide::Context;
use node_attestation_core::ledger::{Absences, Records, Revocations};
use node_attestation_core::log_lines::Unlimited;
use node_attestation_core::nodes::Nodes;
use node_attestation_core::serving::NodeReportedAddresses;
use node_attestation_core::signer::Signer;
use node_attestation_core::verifier::Verifiers;

use crate::capi::{Cluster, OwnAttestors};
use crate::client::ClusterAccess;
use crate::file_inventory::ClusterInventory;
use crate::management::configuration::{CheckedSpec, Configuration, Dependencies, InvalidSpec};
use crate::management::spec_mapping::{allowed_retirements, is_to_be_enforced};

/// The settings are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnusableSettings(String);

impl From<InvalidSpec> for UnusableSettings {
    fn from(invalid: InvalidSpec) -> Self {
        Self(invalid.to_string())
    }
}

/// A cluster whose configuration is in files.
pub(crate) struct ClusterInFiles<'a> {
    pub(crate) authentication: &'a KubeletAuthentication,
    pub(crate) inventory: ClusterInventory,
    /// The CA certificates, as DER.
    pub(crate) ca_certificates: &'a BTreeSet<Vec<u8>>,
    /// The workload cluster. If `None`, requests can only be read from files.
    pub(crate) workload: Option<&'a ClusterAccess>,
    pub(crate) verifiers: Verifiers,
    pub(crate) records: Arc<dyn Records>,
    pub(crate) signer: Arc<Signer>,
}

impl ClusterInFiles<'_> {
    /// Creates the context for decisions on the cluster's requests.
    pub(crate) fn context<N>(self, nodes: N) -> Result<Context, UnusableSettings>
    where
        N: Nodes + NodeReportedAddresses + 'static,
    {
        let ClusterInventory {
            machines,
            mut endpoint_hosts,
            service_ranges,
        } = self.inventory;
        let inventory = machines.ok_or_else(|| {
            let what = "the inventory has awsInstances: true, but this program does not list instances: list the \
                machines instead";
            UnusableSettings(what.to_owned())
        })?;
        let spec = &self.authentication.spec;
        let checked = CheckedSpec::of(spec)?;
        endpoint_hosts.extend(self.workload.and_then(ClusterAccess::server_host));
        let cluster = Cluster {
            uid: uid(self.ca_certificates),
            paused: false,
            deleting: false,
            watch_filter: None,
            endpoint: None,
            service_ranges: service_ranges.iter().map(ToString::to_string).collect(),
            infrastructure: None,
            control_plane: None,
            attestors: OwnAttestors::Unset,
        };
        let absences = Absences::default();
        absences.allow(allowed_retirements(self.authentication));
        let of_cas = self.ca_certificates.iter();
        let of_cas = of_cas.map(|der| Audience::of_ca(der));
        let configuration =
            Configuration::new(spec, checked, cluster, of_cas, self.verifiers, self.signer);
        let context = configuration.context(Dependencies {
            nodes,
            endpoint_hosts,
            inventory,
            records: self.records,
            absences,
            revocations: Revocations::default(),
            lines: Arc::new(Unlimited),
        });
        // The operator enforces attestation with the settings file. The controller does not inspect the existing Nodes.
        context.enforcement.set(is_to_be_enforced(spec));
        if spec.guest_reported_addresses == GuestReportedAddresses::Refuse {
            // Machine addresses come only from the operator's file, and never from the machines themselves.
            context.serving.service_ranges.add(Vec::new(), true);
        }
        Ok(context)
    }
}

/// A name for the cluster with these CA certificates. It is used instead of a Cluster's UID. All replicas must use the
/// same name, although the certificates might have a different order in their files.
pub(crate) fn uid(ca_certificates: &BTreeSet<Vec<u8>>) -> String {
    // Each DER certificate contains its length, so two different lists never result in the same bytes.
    let certificates: Vec<u8> = ca_certificates.iter().flatten().copied().collect();
    Audience::of_ca(&certificates).to_string()
}

/// The certificates in this text, as DER.
pub(crate) fn certificates(text: &[u8]) -> BTreeSet<Vec<u8>> {
    let blocks = pem::parse_many(text).unwrap_or_default().into_iter();
    let certificates = blocks.filter(|block| block.tag() == "CERTIFICATE");
    certificates.map(pem::Pem::into_contents).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_uid_does_not_depend_on_certificate_order_and_format() {
        let certificate = |byte| {
            let der = [&[0x30, 0x82, 1, 0][..], &[byte; 256]].concat();
            pem::encode(&pem::Pem::new("CERTIFICATE", der))
        };
        let (first, second) = (certificate(1), certificate(2));
        let cluster = |parts: &[&str]| uid(&certificates(parts.concat().as_bytes()));
        let expected = cluster(&[&first, &second]);

        for same in [
            cluster(&[&second, &first]),
            cluster(&[&first, "\n", &second, "\n\n"]),
            cluster(&["subject=CN = kubernetes\n", &first, &second, &first]),
            cluster(&[&first, &second.replace("\r\n", "\n")]),
            cluster(&[&first.replace("\r\n", "\n"), &second]),
        ] {
            assert_eq!(same, expected);
        }
        for other in [
            cluster(&[&first]),
            cluster(&[&second]),
            cluster(&[&first, &certificate(3)]),
            cluster(&["no certificate"]),
        ] {
            assert_ne!(other, expected);
        }
    }
}
