//! The cluster of a run, and the login for it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::attempt::Attempt;
use super::exit_code::bootstrap_failure;
use crate::attester::Renewal;
use crate::clock;
use crate::exec::ExecCluster;
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{ClusterEndpoint, Kubeconfig, Login};
use crate::origin::Origin;
use crate::settings::Settings;
use crate::store_contents::StoreContents;

impl Attempt {
    /// The login, and the endpoint of the bootstrap kubeconfig if the login comes from there.
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

    /// The bootstrap login, for a certificate that is in date but refused: the CA was replaced, the
    /// certificate was revoked, or the ledger records another holder. `None` without a usable
    /// bootstrap kubeconfig.
    pub(super) fn bootstrap_login(&self, refused: &Failure) -> Option<Login> {
        let bootstrap = Kubeconfig::read(&self.settings.bootstrap_kubeconfig).ok()?;
        self.log.warn(&format!(
            "the certificate is not accepted, so the bootstrap credential is used: {refused}"
        ));
        Some(bootstrap.login)
    }

    /// The API server, from the first of these: the exec info, the store, the settings, the
    /// bootstrap kubeconfig.
    pub(super) fn endpoint(
        &self,
        stored: &StoreContents,
        bootstrap: Option<ClusterEndpoint>,
    ) -> Result<ClusterEndpoint, Failure> {
        if let Some(endpoint) = &self.endpoint {
            if let Some(origin) = &stored.origin {
                refuse_other_cluster(endpoint, origin, &self.settings)?;
            }
            let document = "the exec info's cluster";
            return Ok(ClusterEndpoint::from_fields(
                endpoint.to_fields(),
                document,
            )?);
        }
        if let Some(origin) = &stored.origin {
            return Ok(origin.cluster()?);
        }
        match (&self.settings.kubeconfig, bootstrap) {
            (Some(path), _) => Ok(Kubeconfig::read_endpoint(path)?),
            (None, Some(endpoint)) => Ok(endpoint),
            (None, None) => {
                let path = &self.settings.bootstrap_kubeconfig;
                Kubeconfig::read_endpoint(path).map_err(|error| bootstrap_failure(&error, path))
            }
        }
    }
}

/// Refuses an endpoint in another cluster, and removes nothing. A run with a kubeconfig of another
/// cluster must not cost the node its credential.
fn refuse_other_cluster(
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
            "this node is enrolled with the cluster at {}, and is asked for a credential for another, at {}",
            known.server(),
            endpoint.server()
        ),
        format!(
            "use a kubeconfig of its own cluster; or, to move the node, run `reset` (it empties {})",
            settings.state_directory.display()
        ),
    ))
}

/// Whether the exec info has other CA certificates than those that the stored credential was issued
/// under.
pub(super) fn ca_changed(cluster: Option<&ExecCluster<'_>>, origin: Option<&Origin>) -> bool {
    let data = cluster.and_then(|cluster| cluster.certificate_authority_data.as_deref());
    let (Some(data), Some(origin)) = (data, origin) else {
        return false;
    };
    // Invalid base64 counts as a change: the slow path reports the error.
    STANDARD.decode(data).map_or(true, |pem| {
        !is_same(&pem, origin.endpoint.ca_pem.as_bytes())
    })
}

/// Compares eight bytes at a time, unlike musl's `memcmp`.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let (words, rest) = one.as_chunks();
    let (other_words, other_rest) = other.as_chunks();
    let mut pairs = words.iter().zip(other_words);
    one.len() == other.len()
        && pairs.all(|(one, other)| u64::from_ne_bytes(*one) == u64::from_ne_bytes(*other))
        && rest == other_rest
}

#[cfg(test)]
mod tests {
    use kubelet_attestation::names::NodeName;

    use super::*;
    use crate::kube::kubeconfig::EndpointFields;
    use crate::machine::MachineDigest;

    const CA: &str = "-----BEGIN CERTIFICATE-----\n";

    fn info(data: Option<&str>) -> String {
        let data = data.map_or("null".to_owned(), |data| format!("\"{data}\""));
        format!(
            r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{{"cluster":{{"server":"https://x","certificate-authority-data":{data}}}}}}}"#
        )
    }

    fn changed(data: Option<&str>) -> bool {
        let endpoint = EndpointFields {
            ca_pem: CA.to_owned(),
            ..EndpointFields::default()
        };
        let node_name = NodeName::parse("n1").unwrap();
        let origin = Origin {
            node_name,
            endpoint,
            machine: MachineDigest::default(),
            boot_id: None,
        };
        let text = info(data);
        let info = crate::exec::ExecInfo::parse(text.as_ref()).unwrap();
        ca_changed(info.cluster.as_ref(), Some(&origin))
    }

    #[test]
    fn bytes_are_the_same_where_each_is() {
        for length in 0..20 {
            let bytes = vec![1; length];
            assert!(is_same(&bytes, &bytes));
            assert!(!is_same(&bytes, &vec![1; length + 1]));
            for changed in 0..length {
                let mut other = bytes.clone();
                other[changed] = 2;
                assert!(!is_same(&bytes, &other), "{changed} of {length}");
            }
        }
    }

    #[test]
    fn a_ca_has_changed_if_its_bytes_have() {
        assert!(!changed(Some(&STANDARD.encode(CA))));
        assert!(changed(Some(&STANDARD.encode(format!("{CA}{CA}")))));
        assert!(changed(Some("no base64")));
        assert!(!changed(None));
        assert!(!ca_changed(None, None));
    }
}
