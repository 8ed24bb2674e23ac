//! The cluster of a run, and the login to that cluster.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::attempt::Attempt;
use super::remedies::bootstrap_failure;
use crate::attester::Renewal;
use crate::clock;
use crate::exec::ExecCluster;
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{
    ClusterEndpoint, EndpointFields, InvalidKubeconfig, Kubeconfig, Login,
};
use crate::origin::Origin;
use crate::process;
use crate::settings::Settings;
use crate::store_contents::StoreContents;

/// The cluster for which a run gets a credential.
pub(crate) enum Cluster<'a> {
    /// The cluster from client-go. A run checks the cluster only when it connects to it.
    Exec(&'a ExecCluster<'a>),
    /// The cluster from a kubeconfig, already checked.
    Checked(Arc<ClusterEndpoint>),
}

impl Cluster<'_> {
    /// Checks and returns the endpoint.
    pub(super) fn endpoint(&self) -> Result<Arc<ClusterEndpoint>, InvalidKubeconfig> {
        match self {
            Self::Exec(cluster) => cluster.endpoint().map(Arc::new),
            Self::Checked(endpoint) => Ok(Arc::clone(endpoint)),
        }
    }

    /// The CA certificates in PEM, if any. If the base64 is invalid, the result is an empty text. The empty text
    /// differs from every stored text, so it causes a renewal, and the renewal reports the error.
    pub(super) fn ca_pem(&self) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::Exec(cluster) => {
                let data = cluster.certificate_authority_data.as_deref()?;
                Some(STANDARD.decode(data).unwrap_or_default().into())
            }
            Self::Checked(endpoint) => Some(endpoint.ca_pem().as_bytes().into()),
        }
    }
}

impl Cluster<'_> {
    /// Returns the endpoint of this cluster, if it differs from the stored endpoint. Both endpoints have a common CA
    /// certificate, and neither endpoint comes from the network.
    pub(super) fn moved_from(&self, known: &Origin) -> Option<EndpointFields> {
        if self.has(&known.endpoint) {
            return None;
        }
        let (endpoint, known) = (self.endpoint().ok()?, known.cluster().ok()?);
        let moved = endpoint.has_ca_of(&known);
        moved.then(|| endpoint.to_fields())
    }

    /// Whether the endpoint has these fields. This function compares only the lengths of the CA certificates, because
    /// each run for client-go calls this function, and must not decode certificates. If the comparison overlooks a
    /// difference, the next renewal stores the new certificates.
    fn has(&self, fields: &EndpointFields) -> bool {
        let cluster = match self {
            Self::Exec(cluster) => cluster,
            Self::Checked(endpoint) => return endpoint.to_fields() == *fields,
        };
        let is = |text: Option<&str>, stored: &Option<String>| {
            text.filter(|text| !text.is_empty()) == stored.as_deref()
        };
        cluster.server.trim_end_matches('/') == fields.server
            && is(cluster.tls_server_name.as_deref(), &fields.tls_server_name)
            && is(cluster.proxy_url.as_deref(), &fields.proxy_url)
            && cluster
                .certificate_authority_data
                .as_deref()
                .is_some_and(|data| decoded_len(data) == fields.ca_pem.len())
    }
}

/// The length of the decoded data, if the base64 is valid.
fn decoded_len(base64: &str) -> usize {
    let padding = base64.len() - base64.trim_end_matches('=').len();
    (base64.len() / 4 * 3).saturating_sub(padding)
}

impl Attempt {
    /// Returns the login. If the login comes from the bootstrap kubeconfig, also returns its endpoint.
    pub(super) fn login(
        &self,
        stored: &StoreContents,
    ) -> Result<(Login, Option<ClusterEndpoint>), Failure> {
        let valid = stored
            .valid(clock::now())
            .filter(|_| self.attester.renewal() == Renewal::Attested);
        if let Some(credential) = valid {
            return Ok((credential.login(), None));
        }
        let path = &self.settings.bootstrap_kubeconfig;
        let bootstrap = Kubeconfig::read(path).map_err(|error| bootstrap_failure(&error, path))?;
        Ok((bootstrap.login, Some(bootstrap.endpoint)))
    }

    /// Returns the API server, from the first available source: the exec info or, in a manual run, the kubelet's
    /// kubeconfig; the store; the bootstrap kubeconfig.
    pub(super) fn endpoint(
        &self,
        stored: &StoreContents,
        bootstrap: Option<ClusterEndpoint>,
    ) -> Result<Arc<ClusterEndpoint>, Failure> {
        // A later release might have stored an endpoint that this release cannot use. The run that stores the next
        // certificate replaces that endpoint.
        let known = stored.origin.as_ref().map(Origin::cluster);
        if let Some(endpoint) = &self.endpoint {
            if let (Some(origin), Some(Ok(_))) = (&stored.origin, &known) {
                refuse_other_cluster(endpoint, origin, &self.settings)?;
            }
            return Ok(Arc::clone(endpoint));
        }
        if let Some(Ok(known)) = known {
            return Ok(known.into());
        }
        if let Some(endpoint) = bootstrap {
            return Ok(endpoint.into());
        }
        let path = &self.settings.bootstrap_kubeconfig;
        let endpoint = Kubeconfig::read_endpoint(path);
        Ok(endpoint
            .map_err(|error| bootstrap_failure(&error, path))?
            .into())
    }
}

/// Rejects an endpoint in another cluster. Does not delete anything: a run with another cluster's kubeconfig must not
/// delete the node's credential.
pub(crate) fn refuse_other_cluster(
    endpoint: &ClusterEndpoint,
    origin: &Origin,
    settings: &Settings,
) -> Result<(), Failure> {
    let known = origin.cluster()?;
    if known.is_of_same_cluster(endpoint) {
        return Ok(());
    }
    Err(Failure::new(
        Code::Configuration,
        format!(
            "this node is enrolled with the cluster at {}, but the caller requests a credential \
             for the cluster at {}",
            known.server(),
            endpoint.server()
        ),
        format!(
            "use a kubeconfig of the node's cluster; or, to move the node, run: {} reset --yes (this \
             empties {})",
            process::command(),
            settings.state_directory.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::names::NodeName;
    use kubelet_authenticator_test_support::pki::CertificateAuthority;
    use serde_json::json;

    use super::*;
    use crate::exec::ExecInfo;
    use crate::machine::MachineDigest;

    #[test]
    fn the_ca_of_an_exec_info_is_read_without_validation() {
        for (data, expected) in [
            (r#""YWJj""#, Some("abc")),
            (r#""no base64""#, Some("")),
            ("null", None),
        ] {
            let text = format!(
                r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{{"cluster":{{"server":"https://x","certificate-authority-data":{data}}}}}}}"#
            );
            let info = ExecInfo::parse(text.as_ref()).unwrap();
            let cluster = Cluster::Exec(info.cluster.as_ref().unwrap());

            assert_eq!(cluster.ca_pem().as_deref(), expected.map(str::as_bytes));
        }
    }

    /// The CA certificates and the server URL of a cluster, as client-go passes them.
    fn exec_info(server: &str, ca_pem: &str) -> String {
        let cluster = json!({
            "server": server,
            "certificate-authority-data": STANDARD.encode(ca_pem),
        });
        json!({
            "kind": "ExecCredential",
            "apiVersion": "client.authentication.k8s.io/v1",
            "spec": {"cluster": cluster},
        })
        .to_string()
    }

    #[test]
    fn a_moved_cluster_is_recognized_by_a_common_ca_certificate() {
        let [ca, new, foreign] = ["kubernetes", "new", "foreign"]
            .map(|name| CertificateAuthority::new(name).certificate_pem().to_owned());
        let known = Origin {
            node_name: NodeName::parse("n1").unwrap(),
            endpoint: EndpointFields {
                server: "https://10.0.0.1:6443".to_owned(),
                ca_pem: ca.clone(),
                ..EndpointFields::default()
            },
            machine: MachineDigest::default(),
            boot_id: None,
            refused_again: None,
        };
        let both = format!("{ca}{new}");
        for (server, ca_pem, moved) in [
            ("https://10.0.0.1:6443", &ca, false),
            ("https://10.0.0.1:6443/", &ca, false),
            ("https://10.0.0.2:6443", &ca, true),
            ("https://10.0.0.2:6443", &both, true),
            ("https://10.0.0.1:6443", &both, true),
            ("https://10.0.0.1:6443", &new, false),
            ("https://10.0.0.2:6443", &foreign, false),
        ] {
            let text = exec_info(server, ca_pem);
            let info = ExecInfo::parse(text.as_ref()).unwrap();
            let exec = Cluster::Exec(info.cluster.as_ref().unwrap());
            let checked = Cluster::Checked(exec.endpoint().unwrap());
            for cluster in [exec, checked] {
                let expected = moved.then(|| EndpointFields {
                    server: server.to_owned(),
                    ca_pem: ca_pem.clone(),
                    ..EndpointFields::default()
                });
                assert_eq!(cluster.moved_from(&known), expected, "{server}");
            }
        }
    }

    #[test]
    fn the_computed_base64_length_matches_the_decoded_length() {
        for length in 0..40 {
            let text = "x".repeat(length);
            assert_eq!(decoded_len(&STANDARD.encode(&text)), length);
        }
    }
}
