//! Which cluster to ask, and as whom.

use super::attempt::Attempt;
use super::blame::{bootstrap_failure, kubeconfig_failure};
use crate::attester::Renewal;
use crate::clock;
use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::{ClusterEndpoint, Kubeconfig, KubeconfigError, Login};
use crate::origin::Origin;
use crate::secret::Secret;
use crate::settings::Settings;
use crate::store::StoreFile;
use crate::stored::Stored;

impl Attempt {
    /// As whom to ask, and which cluster the bootstrap kubeconfig names if it was read for that.
    pub(super) fn login(
        &self,
        stored: &Stored,
    ) -> Result<(Login, Option<ClusterEndpoint>), Failure> {
        let valid = stored
            .valid(clock::now())
            .filter(|_| self.attester.renewal() == Renewal::Attested);
        if let Some(credential) = valid {
            let login = Login::ClientCertificate {
                chain_pem: credential.certificate_pem().to_owned(),
                key_pem: Secret::new(credential.key_pem().expose().clone()),
            };
            return Ok((login, None));
        }
        let path = &self.settings.bootstrap_kubeconfig;
        let bootstrap = Kubeconfig::read(path).map_err(|error| bootstrap_failure(&error, path))?;
        Ok((bootstrap.login, Some(bootstrap.endpoint)))
    }

    /// As whom to ask where the certificate is not accepted, though it has not ended: its CA was
    /// replaced, it was revoked, or the ledger has another holder. `None` where only the certificate
    /// is left.
    pub(super) fn bootstrap_login(&self, refused: &Failure) -> Option<Login> {
        let bootstrap = Kubeconfig::read(&self.settings.bootstrap_kubeconfig).ok()?;
        self.log.warn(&format!(
            "the certificate is not accepted, so the bootstrap credential is used: {refused}"
        ));
        Some(bootstrap.login)
    }

    /// Which cluster: client-go's word, or else the store's, the settings' or the bootstrap
    /// kubeconfig's.
    pub(super) fn endpoint(
        &self,
        stored: &Stored,
        bootstrap: Option<ClusterEndpoint>,
    ) -> Result<ClusterEndpoint, Failure> {
        let wrong = |error: KubeconfigError| kubeconfig_failure(&error);
        if let Some(endpoint) = &self.endpoint {
            if let Some(origin) = &stored.origin {
                refuse_other_cluster(endpoint, origin, &self.settings)?;
            }
            let document = "the exec info's cluster";
            return ClusterEndpoint::from_fields(endpoint.to_fields(), document).map_err(wrong);
        }
        if let Some(origin) = &stored.origin {
            let document = StoreFile::Origin.name();
            return ClusterEndpoint::from_fields(origin.endpoint.clone(), document).map_err(wrong);
        }
        match (&self.settings.kubeconfig, bootstrap) {
            (Some(path), _) => Kubeconfig::read_endpoint(path).map_err(wrong),
            (None, Some(endpoint)) => Ok(endpoint),
            (None, None) => {
                let path = &self.settings.bootstrap_kubeconfig;
                Kubeconfig::read_endpoint(path).map_err(|error| bootstrap_failure(&error, path))
            }
        }
    }
}

/// Nothing is thrown away for it: whoever runs the plugin with a kubeconfig of another cluster must
/// not cost the node its credential.
fn refuse_other_cluster(
    endpoint: &ClusterEndpoint,
    origin: &Origin,
    settings: &Settings,
) -> Result<(), Failure> {
    let known = ClusterEndpoint::from_fields(origin.endpoint.clone(), StoreFile::Origin.name())
        .map_err(|error| kubeconfig_failure(&error))?;
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
